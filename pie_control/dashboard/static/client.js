// What the pages ask of the server. The key stays in this module's memory: it is in no storage, cookie or URL.
let key = "";

export function useKey(given) {
  key = given.trim();
}

// Whether a text can be a key at all: no header has other characters.
export function canBeKey(given) {
  return /^[!-~]*$/.test(given.trim());
}

function headers() {
  return key ? { authorization: `Bearer ${key}` } : {};
}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new Refused(response.status, body.error?.message ?? `the server answered ${response.status}`);
}

export async function request(path, options = {}) {
  return checked(await fetch(path, { cache: "no-store", ...options, headers: headers() }));
}

// Server-sent events: { event, data } each. The reason for which the server ends them, an `error`, is thrown. By fetch, since an EventSource could show the key in the URL only.
export async function* events(path, options = {}, answered = () => {}) {
  const response = await request(path, options);
  answered(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const found = { event: "message", data: "" };
        for (const line of part.split("\n")) {
          const colon = line.indexOf(":");
          if (colon > 0) found[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
        }
        if (!found.data) continue;
        const data = JSON.parse(found.data);
        if (found.event === "error") throw new Error(data.error?.message ?? "the server has ended the stream");
        yield { event: found.event, data };
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // who stops reading leaves
  }
}
