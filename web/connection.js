// The socket: opens, reopens with back-off, and says in words what went wrong.
//
// Events: "state" (detail {state: "connecting" | "ready" | "lost" | "ended", text}), "message" (detail:
// the server's event). Audio is sent only while the line keeps up: policy, drop the newest frame.

const FIRST_DELAY_MS = 500;
const MAX_DELAY_MS = 15000;
const MAX_BUFFERED_BYTES = 1 << 20;

// Close codes as in app/connection.py, and those of RFC 6455.
const REASONS = {
  1001: "The server is shutting down.",
  1009: "A message was too large.",
  1011: "The server had an internal error.",
  1013: "All places are taken.",
  4008: "This page could not keep up.",
  4029: "The server did not understand this page.",
};
const FINAL_CODES = new Set([4029]);

export class Connection extends EventTarget {
  #url;
  #socket = null;
  #numFailures = 0;
  #timer = 0;
  #wasEverReady = false;

  constructor(url) {
    super();
    this.#url = url;
    // a laptop that wakes up, a network that returns: try at once
    window.addEventListener("online", () => this.#socket || this.open());
  }

  get isReady() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  open() {
    clearTimeout(this.#timer);
    this.#tell("connecting", "Connecting…");
    const socket = new WebSocket(this.#url, ["realtime"]);
    this.#socket = socket;
    socket.onmessage = ({ data }) => {
      const event = JSON.parse(data);
      if (event.type === "session.created") {
        this.#numFailures = 0;
        this.#wasEverReady = true;
        this.#tell("ready", "Ready");
      }
      this.dispatchEvent(new CustomEvent("message", { detail: event }));
    };
    socket.onclose = ({ code, reason }) => {
      this.#socket = null;
      this.#closed(code, reason);
    };
  }

  // False: not sent, the line is down or (for audio) behind.
  send(event, { mayDrop = false } = {}) {
    if (!this.isReady || (mayDrop && this.#socket.bufferedAmount > MAX_BUFFERED_BYTES)) {
      return false;
    }
    this.#socket.send(JSON.stringify(event));
    return true;
  }

  #closed(code, reason) {
    const why = REASONS[code] ?? (reason || this.#guess());
    if (FINAL_CODES.has(code)) {
      this.#tell("ended", why);
      return;
    }
    const delayMs = Math.min(MAX_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#numFailures);
    this.#numFailures++;
    const jitteredMs = delayMs * (0.75 + Math.random() / 2); // many pages must not return at once
    this.#tell("lost", `${why} Trying again in ${Math.ceil(jitteredMs / 1000)} s.`);
    this.#timer = setTimeout(() => this.open(), jitteredMs);
  }

  #guess() {
    return this.#wasEverReady
      ? "The connection was lost."
      : "The server cannot be reached, or does not accept this page (is a token needed?).";
  }

  #tell(state, text) {
    this.dispatchEvent(new CustomEvent("state", { detail: { state, text } }));
  }
}
