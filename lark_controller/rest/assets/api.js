// Asking the REST API. What it refuses is a Problem (RFC 9457); what does not answer is one with status 0.

import { token } from "./session.js";

// The controller may stand behind a proxy under a path of its own.
const ROOT = new URL("../", import.meta.url);
const TIMEOUT_MS = 20000;

export class Problem extends Error {
  constructor(status, document, retryAfter = 0) {
    super(document.detail || document.title || `The controller answered ${status}.`);
    this.status = status;
    this.type = document.type || "";
    this.title = document.title || "";
    this.mistakes = document.mistakes || [];
    this.retryAfter = retryAfter;
  }
}

// A path of the API from parts and a query; what is undefined, null or empty is left out.
export function path(parts, query = {}) {
  const asked = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") asked.set(name, value);
  }
  const text = asked.toString();
  return `v1/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function get(parts, query, signal) {
  return request("GET", path(parts, query), { signal });
}

export function remove(parts, signal) {
  return request("DELETE", path(parts), { signal });
}

export function sendPolicy(method, parts, text, { signal, digest } = {}) {
  const headers = { "Content-Type": "application/yaml" };
  if (digest) headers["If-Match"] = `"${digest}"`;
  // A plan for a large pool takes its time.
  return request(method, path(parts), { body: text, headers, signal, timeout: 120000 });
}

async function request(method, where, { body, headers = {}, signal, timeout = TIMEOUT_MS }) {
  const signals = [AbortSignal.timeout(timeout)];
  if (signal) signals.push(signal);
  let answer;
  let data;
  try {
    answer = await fetch(new URL(where, ROOT), {
      method,
      body,
      headers: { Accept: "application/json", Authorization: `Bearer ${token() || ""}`, ...headers },
      signal: AbortSignal.any(signals),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
    data = await answer.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    if (answer) throw new Problem(answer.status, { detail: "The answer is not the controller's." });
    const late = error.name === "TimeoutError";
    throw new Problem(0, { title: late ? "The controller takes too long" : "The controller does not answer" });
  }
  if (!answer.ok) throw new Problem(answer.status, data, Number(answer.headers.get("Retry-After")) || 0);
  return data;
}
