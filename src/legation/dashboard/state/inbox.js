// The inbox: one list that the server ranks, read again whenever its stream says that something changed.
import { signal } from "../vendor/preact.js";
import { get, me, part } from "../api.js";
import { follow } from "./stream.js";

export const inbox = signal(null);
export const problem = signal(null);
export const changed = signal({ count: 0, ids: new Set() }); // what the last news were about
export const outcomes = signal(new Map()); // of approvals that were shown: the row stays until somebody leaves it
const GATHER_MS = 80; // a turn that asks says several things at once

export async function readInbox() {
  try {
    const told = await get("v1/inbox");
    inbox.value = told;
    problem.value = null;
    return told;
  } catch (failed) {
    problem.value = failed;
    return null;
  }
}

export function followInbox() {
  let stop = () => {};
  let due = null;
  let over = false;
  let ids = new Set();
  const take = (event) => {
    const told = event.raw;
    if (told.happened === "looked-at" && told.person && told.person !== me.value.user) return;
    ids.add(told.id);
    clearTimeout(due);
    due = setTimeout(async () => {
      const about = ids;
      ids = new Set();
      await readInbox();
      changed.value = { count: changed.value.count + 1, ids: about };
    }, GATHER_MS);
  };
  const begin = async () => {
    const told = await readInbox();
    if (over) return;
    if (told === null) due = setTimeout(begin, 2000);
    else stop = follow(told.stream, told.seq, take, { replaced: begin });
  };
  begin();
  return () => {
    over = true;
    clearTimeout(due);
    stop();
  };
}

// Rows to show: members of one group folded into one, unless somebody wants them one by one.
export function rows(items, apart) {
  const found = [];
  const groups = new Map();
  for (const item of items) {
    const place = item.group && !apart.has(item.group) ? groups.get(item.group) : undefined;
    if (place) place.members.push(item);
    else {
      const row = { item, members: [item] };
      found.push(row);
      if (item.group) groups.set(item.group, row);
    }
  }
  return found;
}

// What needs me, as the list counts it: a group is one.
export const needing = () => rows((inbox.value?.items ?? []).filter((item) => item.section === "you"), new Set()).length;

export const where = (item) => (item.kind === "question" ? `inbox/${part(item.sessionId)}/q/${part(item.id)}` : `inbox/${part(item.id)}`);
