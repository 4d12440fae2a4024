// The record of a session or a run as it happens: read once from its beginning, then followed.
import { useEffect, useRef, useState } from "../vendor/preact.js";
import { get, part } from "../api.js";
import { follow } from "./stream.js";
import { Transcript } from "./transcript.js";

const PAGE = 1000; // events of one request
const RAW_KEPT = 5000; // events kept for the raw view

// `begin` gives a snapshot to begin with, or null; `ended` is called when the stream has no more to tell.
export function useRecord(id, begin, ended) {
  const all = useRef(null);
  const raw = useRef([]);
  const again = useRef(() => {});
  const [problem, setProblem] = useState(null);
  const [, repaint] = useState(0);
  useEffect(() => {
    let over = false;
    let stop = () => {};
    let due = null;
    let waiting = []; // live events while the history is read: the fold over all of it takes them last
    const paint = () => {
      due ??= requestAnimationFrame(() => {
        due = null;
        repaint((count) => count + 1);
      });
    };
    const take = (event) => {
      raw.current.push(event);
      if (raw.current.length > RAW_KEPT) raw.current = raw.current.slice(-RAW_KEPT);
      waiting.push(event);
      all.current.take(event);
      paint();
    };
    const live = (after) => {
      stop();
      stop = follow(id, after, take, { ended, replaced: start });
    };
    const start = async () => {
      try {
        const snapshot = await begin();
        if (over) return;
        raw.current = [];
        waiting = [];
        all.current = snapshot ? Transcript.fromSnapshot(snapshot) : null;
        setProblem(null);
        if (snapshot) live(snapshot.seq);
        await history(snapshot?.seq ?? Infinity);
        if (!snapshot && !over) live(all.current.seq);
      } catch (failed) {
        if (!over) setProblem(failed);
      }
    };
    // The whole record, with times and decisions: a snapshot is on the screen until it is read.
    const history = async (upto) => {
      const whole = new Transcript();
      const events = [];
      let after = 0;
      while (after < upto && !over) {
        const page = await get(`v1/streams/${part(id)}/events?after=${after}&limit=${PAGE}`);
        for (const event of page.items) {
          if (event.seq > upto) break;
          whole.take(event);
          events.push(event);
        }
        if (page.next === null || !page.items.length) break;
        after = page.items.at(-1).seq;
      }
      if (over) return;
      for (const event of waiting) whole.take(event);
      raw.current = [...events.slice(-RAW_KEPT), ...waiting];
      all.current = whole;
      paint();
    };
    again.current = start;
    start();
    return () => {
      over = true;
      stop();
      cancelAnimationFrame(due);
    };
  }, [id]);
  return { told: all.current, raw: raw.current, problem, again: () => again.current() };
}
