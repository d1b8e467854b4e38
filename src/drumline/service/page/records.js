// Records of metrics.jsonl as curves.

const seconds = (record) => record.elapsed_s;

/** x values that curves can have: [value, words, unit, how it is read]. */
export const AXES = {
  step: { words: "Updates", title: "Updates", read: (record) => record.step },
  elapsed: { words: "Training time", title: "Training time (s)", read: seconds },
};

/** y values by name: words, unit, kinds of records that have them. */
export const VALUES = {
  loss: { words: "Loss", unit: "", kind: "train" },
  eval_loss: { words: "Evaluation loss", unit: "", kind: "eval", field: "loss" },
  units_per_s: { words: "Rate", unit: "/s", kind: "train" },
  lr: { words: "Learning rate", unit: "", kind: "train" },
  grad_norm: { words: "Gradient norm", unit: "", kind: "train" },
  mfu: { words: "Model FLOPs use", unit: "", kind: "train" },
};

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** Points {x[], y[]} of one value over one axis; records without either are left out. */
export function points(records, name, axis) {
  const { kind, field = name } = VALUES[name];
  const x = [];
  const y = [];
  for (const record of records) {
    const at = axis.read(record);
    if (record.kind === kind && isNumber(record[field]) && (isNumber(at) || at instanceof Date)) {
      x.push(at);
      y.push(record[field]);
    }
  }
  return { x, y };
}

const MOST_GPUS = 4; // curves that can be told apart beside the others

/** Use of the GPUs in percent over time, from `gpu` records: [{name, x[], y[]}]; of many, their mean and the lowest. */
export function gpuUse(records, read) {
  const looks = records.filter((record) => record.kind === "gpu").map((record) => [read(record), usesOf(record)]);
  const gpus = [...new Set(looks.flatMap(([, uses]) => [...uses.keys()]))];
  const curveOf = (name, valueOf) => {
    const there = looks.map(([x, uses]) => [x, valueOf(uses)]).filter(([, y]) => isNumber(y));
    return { name, x: there.map(([x]) => x), y: there.map(([, y]) => y) };
  };
  if (gpus.length <= MOST_GPUS) return gpus.map((gpu) => curveOf(gpu, (uses) => uses.get(gpu)));
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  return [
    curveOf(`mean of ${gpus.length} GPUs`, (uses) => mean([...uses.values()])),
    curveOf("lowest", (uses) => Math.min(...uses.values())),
  ];
}

function usesOf(record) {
  const uses = Object.entries(record.gpus ?? {}).map(([gpu, values]) => [gpu, values.utilization?.mean]);
  return new Map(uses.filter(([, use]) => isNumber(use)).map(([gpu, use]) => [gpu, use * 100]));
}

/** Memory of all processes of a run on a machine without GPU, in GiB. */
export function residentMemory(records, read) {
  const x = [];
  const y = [];
  for (const record of records) {
    const each = record.memory_resident_bytes;
    if (record.kind !== "train" || !Array.isArray(each) || !each.length) continue;
    x.push(read(record));
    y.push(each.reduce((sum, bytes) => sum + bytes, 0) / 2 ** 30);
  }
  return { x, y };
}

/** Settings as dotted names: {train: {lr: 1}} -> {"train.lr": 1}. */
export function flat(value, prefix = "", into = {}) {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    for (const [name, inner] of Object.entries(value)) flat(inner, prefix ? `${prefix}.${name}` : name, into);
  } else into[prefix] = value;
  return into;
}

/** A setting as it is shown. */
export const shown = (value) =>
  value === undefined
    ? "–"
    : value === null
      ? "none"
      : typeof value === "object"
        ? JSON.stringify(value)
        : short(value);

// 0.1 + 0.2 is shown as 0.3.
const short = (value) => String(typeof value === "number" ? Number(value.toPrecision(12)) : value);

/** Names under which not all of some settings are the same, in order. */
export function differing(all) {
  const names = [...new Set(all.flatMap((each) => Object.keys(each)))].sort();
  return names.filter((name) => new Set(all.map((each) => shown(each[name]))).size > 1);
}
