// Rows to learn from, as they are pasted or stand in a file: pure.

/** Files that are understood: how their content becomes rows. */
export function rowsOf(content, name = "") {
  const text = content.replace(/^\uFEFF/, "");
  if (/\.jsonl$/i.test(name))
    return lines(text).map((line, index) => row(json(line, `line ${index + 1}`), `line ${index + 1}`));
  if (/\.json$/i.test(name)) {
    const whole = json(text, "the file");
    if (!Array.isArray(whole)) throw new Error("A .json file must hold a list of texts.");
    return whole.map((each, index) => row(each, `entry ${index + 1}`));
  }
  return lines(text);
}

const lines = (text) =>
  text
    .split(/\r?\n/)
    .map((line) => line.trim())
    .filter(Boolean);

function json(text, where) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`No JSON in ${where}: ${error.message}`);
  }
}

/** A text, or named values as {"prompt": …, "completion": …}; {"text": …} is its text. */
function row(value, where) {
  if (typeof value === "string") return value;
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new Error(`In ${where} stands neither a text nor named values.`);
  }
  const names = Object.keys(value);
  return names.length === 1 && typeof value.text === "string" ? value.text : value;
}
