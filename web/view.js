// What is on the screen: one card per turn, and the timeline under it. Text only ever enters as text.

const SVG = "http://www.w3.org/2000/svg";
const MAX_TURNS = 100;
const TYPING = "typing"; // the card of a message that is still being typed

export class View {
  #turns = new Map(); // item id of the caller's message -> card
  #replies = new Map(); // item id of the reply -> card
  #list = document.querySelector("#turns");
  #template = document.querySelector("#turn");
  #notice = document.querySelector("#notice");
  #noticeTimer = 0;
  #status = document.querySelector("#status");

  setStatus(state, text) {
    this.#status.dataset.state = state;
    this.#status.textContent = state === "lost" || state === "ended" ? "Not connected" : text;
    if (state === "lost" || state === "ended") {
      this.showNotice(text);
    } else if (state === "ready") {
      this.hideNotice();
    }
  }

  // Stays until the state changes, or for `forMs`.
  showNotice(text, forMs = 0) {
    clearTimeout(this.#noticeTimer);
    this.#notice.textContent = text;
    this.#notice.hidden = false;
    if (forMs) {
      this.#noticeTimer = setTimeout(() => this.hideNotice(), forMs);
    }
  }

  hideNotice() {
    clearTimeout(this.#noticeTimer);
    this.#notice.hidden = true;
  }

  // ---- the caller

  speechStarted(itemId) {
    this.#card(itemId).dataset.state = "listening";
  }

  transcriptChanged(itemId, stable, tentative) {
    setWords(this.#card(itemId), stable, tentative);
    this.#follow();
  }

  transcriptFinal(itemId, text) {
    if (!text) {
      this.#remove(itemId);
      return;
    }
    const card = this.#card(itemId);
    card.dataset.state = "heard";
    setWords(card, text, "");
  }

  typing(text) {
    if (!text.trim()) {
      this.#remove(TYPING);
      return;
    }
    const card = this.#card(TYPING);
    card.dataset.state = "typing";
    setWords(card, "", text);
    this.#follow();
  }

  // The message being typed was sent; it becomes the turn of its item.
  typed(itemId, text) {
    const card = this.#turns.get(TYPING) ?? this.#card(itemId);
    this.#turns.delete(TYPING);
    this.#turns.set(itemId, card);
    card.dataset.state = "heard";
    setWords(card, text, "");
  }

  draftChanged(itemId, text) {
    const card = this.#turns.get(itemId || TYPING);
    if (card && card.dataset.state !== "committed") {
      part(card, "draft").hidden = !text;
      part(card, "draft .words").textContent = text;
      this.#follow();
    }
  }

  // ---- the reply

  replyStarted(replyItemId, callerItemId) {
    const card = this.#turns.get(callerItemId) ?? this.#card(`for ${replyItemId}`);
    card.dataset.state = "committed";
    part(card, "draft").hidden = true;
    part(card, "reply").hidden = false;
    this.#replies.set(replyItemId, card);
  }

  replyText(replyItemId, delta) {
    const card = this.#replies.get(replyItemId);
    if (card) {
      part(card, "reply .words").textContent += delta;
      this.#follow();
    }
  }

  replyEnded(replyItemId, status, reason) {
    const marks = { cancelled: "stopped", incomplete: "too long, cut off", failed: "failed" };
    const mark = reason === "turn_detected" ? "interrupted" : marks[status];
    const card = this.#replies.get(replyItemId);
    if (card && mark) {
      part(card, "reply .mark").textContent = `(${mark})`;
    }
  }

  replyCut(replyItemId, heardMs) {
    const card = this.#replies.get(replyItemId);
    if (card) {
      part(card, "reply .mark").textContent = `(interrupted, ${seconds(heardMs)} heard)`;
    }
  }

  measured(callerItemId, metrics) {
    const card = this.#turns.get(callerItemId);
    if (!card || metrics.ttft_ms === null) {
      return;
    }
    part(card, "timeline").hidden = false;
    drawTimeline(part(card, "timeline svg"), metrics);
    writeCaption(part(card, "timeline figcaption"), metrics);
    this.#follow();
  }

  // ---- cards

  #card(itemId) {
    let card = this.#turns.get(itemId);
    if (!card) {
      card = this.#template.content.firstElementChild.cloneNode(true);
      this.#turns.set(itemId, card);
      this.#list.append(card);
      document.querySelector("#hint").hidden = true;
      if (this.#turns.size > MAX_TURNS) {
        this.#remove(this.#turns.keys().next().value);
      }
      this.#follow();
    }
    return card;
  }

  #remove(itemId) {
    const card = this.#turns.get(itemId);
    this.#turns.delete(itemId);
    for (const [replyId, replyCard] of this.#replies) {
      if (replyCard === card) {
        this.#replies.delete(replyId);
      }
    }
    card?.remove();
  }

  // Keep the newest in sight, unless the reader has scrolled away from it.
  #follow() {
    const page = document.scrollingElement;
    if (page.scrollHeight - page.scrollTop - page.clientHeight < 240) {
      page.scrollTop = page.scrollHeight;
    }
  }
}

const part = (card, selector) => card.querySelector(`.${selector}`);

function setWords(card, stable, tentative) {
  part(card, "stable").textContent = stable;
  part(card, "tentative").textContent = tentative;
}

// ---- the timeline: ms after the end of speech, which is 0

const WIDTH = 640;
const HEIGHT = 66;
const MARGIN = 28;
const MIDDLE = HEIGHT / 2;
const LABEL_ROWS_Y = [MIDDLE - 12, MIDDLE + 21, MIDDLE - 25, MIDDLE + 34]; // tried in this order
const CHAR_WIDTH = 6.2; // of the labels' 11 px

function drawTimeline(svg, metrics) {
  const eouMs = metrics.endpoint_delay_ms ?? 0;
  const tokenMs = metrics.lead_time_ms > 0 ? eouMs - metrics.lead_time_ms : eouMs + metrics.ttft_ms;
  const marks = [
    { kind: "speech", label: "speech ends", atMs: 0 },
    { kind: "eou", label: "turn decided", atMs: eouMs },
    { kind: "token", label: "first token", atMs: tokenMs },
  ];
  if (metrics.response_delay_ms !== null && metrics.response_delay_ms !== undefined) {
    marks.push({ kind: "audio", label: "first audio", atMs: metrics.response_delay_ms });
  }
  const times = marks.map((mark) => mark.atMs);
  const fromMs = Math.min(...times);
  const spanMs = Math.max(1, Math.max(...times) - fromMs);
  const x = (ms) => MARGIN + ((ms - fromMs) / spanMs) * (WIDTH - 2 * MARGIN);

  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("aria-label", marks.map((m) => `${m.label} at ${Math.round(m.atMs)} ms`).join(", "));
  svg.replaceChildren(line("axis", x(fromMs), x(fromMs + spanMs)));
  svg.append(line("wait", x(0), x(eouMs)));
  if (tokenMs < eouMs) {
    svg.append(line("ahead", x(tokenMs), x(eouMs))); // the reply existed before it was needed
  }
  const rowEnds = LABEL_ROWS_Y.map(() => -Infinity); // where the last label of each row ends
  for (const mark of marks.toSorted((a, b) => a.atMs - b.atMs)) {
    svg.append(markNode(mark, x(mark.atMs), rowEnds));
  }
}

function line(kind, x1, x2) {
  return node("line", { class: kind, x1, x2, y1: MIDDLE, y2: MIDDLE });
}

function markNode({ kind, label, atMs }, x, rowEnds) {
  const words = `${label} ${Math.round(atMs)}`;
  const width = words.length * CHAR_WIDTH;
  const left = Math.max(0, Math.min(WIDTH - width, x - width / 2));
  const row = Math.max(0, rowEnds.findIndex((end) => end < left));
  rowEnds[row] = left + width;
  const text = node("text", { x: left + width / 2, y: LABEL_ROWS_Y[row], "text-anchor": "middle" });
  text.textContent = words;
  const group = node("g", { class: kind });
  group.append(node("circle", { cx: x, cy: MIDDLE, r: 5 }), text);
  return group;
}

function node(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, value);
  }
  return element;
}

function writeCaption(caption, metrics) {
  const facts = [
    ["heard after", metrics.response_delay_ms, "ms"],
    ["decided after", metrics.endpoint_delay_ms, "ms"],
    ["reply begun", metrics.lead_time_ms || null, "ms ahead"],
    ["kept", metrics.accepted_tokens, `of ${metrics.drafted_tokens} drafted`],
  ];
  caption.replaceChildren();
  for (const [label, value, unit] of facts) {
    if (value === null || value === undefined) {
      continue;
    }
    const number = document.createElement("b");
    number.textContent = String(Math.round(value));
    caption.append(caption.childNodes.length ? " · " : "", `${label} `, number, ` ${unit}`);
  }
}

const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;
