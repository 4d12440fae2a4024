// A long list of rows of any height, of which only those in view are in the page.
import { html, useEffect, useLayoutEffect, useReducer, useRef, useState } from "../vendor/preact.js";
import { Virtualizer, elementScroll, measureElement, observeElementOffset, observeElementRect } from "../vendor/virtual.js";
import { Icon } from "./basics.js";

const AT_END_PX = 48;

// Rows follow the end only while it is in view; scrolling up lets go at once, the pill takes back.
export function VirtualRows({ rows, keyOf, render, label, follow = false, size = 60, at = null }) {
  const [, again] = useReducer((count) => count + 1, 0);
  const scroller = useRef(null);
  const virtual = useRef(null);
  const following = useRef(follow);
  const [below, setBelow] = useState(0);
  const seen = useRef(rows.length);
  const options = {
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => size,
    getItemKey: (at) => keyOf(rows[at]),
    overscan: 6,
    scrollToFn: elementScroll,
    observeElementRect,
    observeElementOffset,
    measureElement,
    onChange: () => again(),
    paddingStart: 16,
    paddingEnd: 24,
  };
  virtual.current ??= new Virtualizer(options);
  virtual.current.setOptions(options);
  useLayoutEffect(() => virtual.current._didMount(), []);
  useLayoutEffect(() => virtual.current._willUpdate());
  useLayoutEffect(() => {
    if (following.current) {
      scroller.current.scrollTop = scroller.current.scrollHeight;
      seen.current = rows.length;
    } else if (follow) setBelow(Math.max(0, rows.length - seen.current));
  });
  const scrolled = () => {
    if (!follow) return;
    const { scrollTop, scrollHeight, clientHeight } = scroller.current;
    const atEnd = scrollHeight - scrollTop - clientHeight < AT_END_PX;
    if (atEnd) seen.current = rows.length;
    if (atEnd !== following.current) {
      following.current = atEnd;
      setBelow(atEnd ? 0 : Math.max(0, rows.length - seen.current));
    }
  };
  // A wheel or key upwards lets go before the first pixel: what arrives in between must not pull it back.
  const letGo = (event) => {
    if (event.deltaY < 0 || event.key === "PageUp" || event.key === "Home" || event.key === "ArrowUp") following.current = false;
  };
  useEffect(() => {
    const resize = new ResizeObserver(() => again());
    resize.observe(scroller.current);
    return () => resize.disconnect();
  }, []);
  useEffect(() => {
    if (at === null) return;
    following.current = false;
    virtual.current.scrollToIndex(at.index, { align: "center" });
  }, [at]);
  const toEnd = () => {
    following.current = true;
    setBelow(0);
    again();
  };
  const items = virtual.current.getVirtualItems();
  return html`<div class="virtual" ref=${scroller} onScroll=${scrolled} onWheel=${letGo} onKeyDown=${letGo} tabindex="0" role="log" aria-label=${label} aria-live="off">
    <div class="all" style=${{ height: `${virtual.current.getTotalSize()}px` }}>
      ${items.map((item) => html`<div key=${item.key} class="virtual-row" data-index=${item.index} ref=${(element) => element && virtual.current.measureElement(element)} style=${{ transform: `translateY(${item.start}px)` }}>${render(rows[item.index])}</div>`)}
    </div>
    ${follow && !following.current && below > 0 && html`<button type="button" class="pill-button" onClick=${toEnd}>
      <${Icon} name="down" /> ${below} new below</button>`}
  </div>`;
}
