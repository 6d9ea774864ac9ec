// The view of each address, and the menu.

import * as drops from "./views/drops.js";
import * as events from "./views/events.js";
import * as explain from "./views/explain.js";
import * as finding from "./views/find.js";
import * as group from "./views/group.js";
import * as groups from "./views/groups.js";
import * as job from "./views/job.js";
import * as jobs from "./views/jobs.js";
import * as map from "./views/map.js";
import * as overview from "./views/overview.js";
import * as policy from "./views/policy.js";
import * as reservations from "./views/reservations.js";
import * as oneSwitch from "./views/switch.js";
import * as switches from "./views/switches.js";
import * as user from "./views/user.js";
import * as version from "./views/version.js";

// [first part of the address, view of the list, view of one]
export const VIEWS = { "": [overview], jobs: [jobs, job], users: [jobs, user], groups: [groups, group], switches: [switches, oneSwitch],
  reservations: [reservations], explain: [explain], policy: [policy, version], events: [events], drops: [drops], map: [map],
  find: [undefined, finding] };
export const MENU = [["", "Overview"], ["map", "Map"], ["jobs", "Jobs"], ["groups", "Groups"], ["switches", "Switches"], ["drops", "Drops"], ["reservations", "Reservations"],
  ["explain", "Explain"], ["policy", "Policy"], ["events", "Events"]];
