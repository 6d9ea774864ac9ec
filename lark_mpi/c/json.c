/* Answers in JSON: checked as a whole first, and then read member by member. A part of lark_mpi.c. */

typedef struct {
    const unsigned char *at, *end;
} json;

static void space(json *in) {
    while (in->at < in->end && (*in->at == ' ' || *in->at == '\t' || *in->at == '\n' || *in->at == '\r')) in->at++;
}

static int next_is(json *in, char wanted) {
    space(in);
    if (in->at == in->end || *in->at != (unsigned char)wanted) return 0;
    in->at++;
    return 1;
}

static int hex4(json *in, unsigned long *code) {
    if (in->end - in->at < 4) return 0;
    *code = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char c = *in->at++;
        unsigned value;
        if (c >= '0' && c <= '9') value = c - '0';
        else if ((c | 32) >= 'a' && (c | 32) <= 'f') value = (c | 32) - 'a' + 10;
        else return 0;
        *code = *code << 4 | value;
    }
    return 1;
}

/* Appends a character, whole or not at all; what has no room is left out. */
static void put(unsigned long code, char *out, size_t size, size_t *length) {
    unsigned char bytes[4];
    size_t count;
    if (code < 0x20 || code == 0x7f) code = '?';
    if (code < 0x80) {
        bytes[0] = (unsigned char)code;
        count = 1;
    } else if (code < 0x800) {
        bytes[0] = (unsigned char)(0xc0 | code >> 6);
        bytes[1] = (unsigned char)(0x80 | (code & 0x3f));
        count = 2;
    } else if (code < 0x10000) {
        bytes[0] = (unsigned char)(0xe0 | code >> 12);
        bytes[1] = (unsigned char)(0x80 | (code >> 6 & 0x3f));
        bytes[2] = (unsigned char)(0x80 | (code & 0x3f));
        count = 3;
    } else {
        bytes[0] = (unsigned char)(0xf0 | code >> 18);
        bytes[1] = (unsigned char)(0x80 | (code >> 12 & 0x3f));
        bytes[2] = (unsigned char)(0x80 | (code >> 6 & 0x3f));
        bytes[3] = (unsigned char)(0x80 | (code & 0x3f));
        count = 4;
    }
    if (out && *length + count < size) {
        memcpy(out + *length, bytes, count);
        *length += count;
    }
}

/* A character of UTF-8, of more than one byte. */
static int multibyte(json *in, unsigned long *code) {
    unsigned char first = *in->at++;
    int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    static const unsigned long least[] = {0, 0x80, 0x800, 0x10000};
    if (first < 0xc2 || first > 0xf4 || in->end - in->at < more) return 0;
    *code = first & (0x3fu >> more);
    for (int i = 0; i < more; i++) {
        if ((*in->at & 0xc0) != 0x80) return 0;
        *code = *code << 6 | (*in->at++ & 0x3f);
    }
    return *code >= least[more] && *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff);
}

static int escape(json *in, unsigned long *code) {
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    unsigned long low;
    if (in->at == in->end) return 0;
    unsigned char c = *in->at++;
    if (c != 'u') {
        const char *found = c ? strchr(names, c) : NULL;
        if (!found) return 0;
        *code = (unsigned char)meant[found - names];
        return 1;
    }
    if (!hex4(in, code)) return 0;
    if (*code >= 0xd800 && *code < 0xdc00 && in->end - in->at >= 6 && in->at[0] == '\\' && in->at[1] == 'u') {
        json ahead = {in->at + 2, in->end};
        if (hex4(&ahead, &low) && low >= 0xdc00 && low < 0xe000) {
            *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
            in->at = ahead.at;
        }
    }
    if (*code >= 0xd800 && *code < 0xe000) *code = '?';
    return 1;
}

/* A string; with `out` its text, cut to `size` bytes with the NUL. */
static int string(json *in, char *out, size_t size) {
    size_t length = 0;
    if (!next_is(in, '"')) return 0;
    while (in->at < in->end && *in->at != '"') {
        unsigned long code = *in->at;
        if (code < 0x20) return 0;
        if (code == '\\') {
            in->at++;
            if (!escape(in, &code)) return 0;
        } else if (code >= 0x80) {
            if (!multibyte(in, &code)) return 0;
        } else {
            in->at++;
        }
        put(code, out, size, &length);
    }
    if (in->at == in->end) return 0;
    in->at++;
    if (out) out[length] = '\0';
    return 1;
}

/* A number, independent of the locale, which strtod is not. */
static int number(json *in, double *value) {
    double sign = 1, found = 0, scale = 1;
    int digits = 0, exponent = 0, negative = 0;
    space(in);
    if (in->at < in->end && *in->at == '-') sign = -1, in->at++;
    for (; in->at < in->end && *in->at >= '0' && *in->at <= '9'; in->at++, digits++) found = found * 10 + (*in->at - '0');
    if (in->at < in->end && *in->at == '.') {
        for (in->at++; in->at < in->end && *in->at >= '0' && *in->at <= '9'; in->at++, digits++) {
            found = found * 10 + (*in->at - '0');
            scale *= 10;
        }
    }
    if (!digits) return 0;
    if (in->at < in->end && (*in->at | 32) == 'e') {
        in->at++;
        if (in->at < in->end && (*in->at == '-' || *in->at == '+')) negative = *in->at++ == '-';
        if (in->at == in->end || *in->at < '0' || *in->at > '9') return 0;
        for (; in->at < in->end && *in->at >= '0' && *in->at <= '9'; in->at++) {
            if (exponent < 400) exponent = exponent * 10 + (*in->at - '0');
        }
    }
    found /= scale;
    for (; exponent > 0; exponent--) found = negative ? found / 10 : found * 10;
    *value = sign * found;
    return 1;
}

static int word(json *in, const char *wanted) {
    size_t length = strlen(wanted);
    if ((size_t)(in->end - in->at) < length || memcmp(in->at, wanted, length)) return 0;
    in->at += length;
    return 1;
}

/* Passes over a value. */
static int value(json *in, int depth) {
    double ignored;
    space(in);
    if (in->at == in->end || depth > MAX_DEPTH) return 0;
    char first = (char)*in->at, last = first == '{' ? '}' : ']';
    switch (first) {
    case '{':
    case '[':
        in->at++;
        if (next_is(in, last)) return 1;
        do {
            if (first == '{' && !(string(in, NULL, 0) && next_is(in, ':'))) return 0;
            if (!value(in, depth + 1)) return 0;
        } while (next_is(in, ','));
        return next_is(in, last);
    case '"': return string(in, NULL, 0);
    case 't': return word(in, "true");
    case 'f': return word(in, "false");
    case 'n': return word(in, "null");
    default: return number(in, &ignored);
    }
}

static int is_object(json in) {
    space(&in);
    if (in.at == in.end || *in.at != '{' || !value(&in, 0)) return 0;
    space(&in);
    return in.at == in.end;
}

/* The value of an object's member; the last of several. The document has been checked. */
static int member(json in, const char *name, json *found) {
    char key[64];
    int there = 0;
    if (!next_is(&in, '{') || next_is(&in, '}')) return 0;
    do {
        if (!string(&in, key, sizeof key) || !next_is(&in, ':')) return 0;
        if (!strcmp(key, name)) *found = in, there = 1;
        if (!value(&in, 0)) return 0;
    } while (next_is(&in, ','));
    return there;
}

static int member_text(json in, const char *name, char *out, size_t size) {
    json found;
    out[0] = '\0';
    return member(in, name, &found) && string(&found, out, size);
}

/* What a document calls infinite, or with hundreds of digits, is no number. */
static int member_number(json in, const char *name, double *out) {
    json found;
    double read;
    if (!member(in, name, &found) || !number(&found, &read) || !(read <= LARGEST && read >= -LARGEST)) return 0;
    *out = read;
    return 1;
}

/* The next of a list's values; `list` is behind its bracket at first. */
static int element(json *list, json *found) {
    json end = *list;
    if (next_is(&end, ']')) return 0;
    *found = *list;
    if (!value(list, 0)) return 0;
    (void)next_is(list, ',');
    return 1;
}

static int member_list(json in, const char *name, json *list) { return member(in, name, list) && next_is(list, '['); }
