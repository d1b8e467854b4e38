// Curves by plotly, which is loaded when the first chart is drawn: the page itself does not wait for it.
import { BASE } from "./api.js";
import { el, put } from "./dom.js";

const MOST_POINTS = 1500; // a curve, as SVG; beyond it, lowest and highest of each stretch are drawn
const drawn = new Set();
let loading = null;

function load() {
  loading ??= new Promise((resolve, reject) => {
    const script = el("script", { src: new URL("ui/plotly.js", BASE).href });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => {
      loading = null; // the next chart tries again
      script.remove();
      reject(new Error("The script that draws charts could not be loaded."));
    });
    document.head.append(script);
  });
  return loading;
}

/** Points {x[], y[]} thinned to about `most`, with lowest and highest of each stretch kept, so that spikes stay. */
export function thin(points, most = MOST_POINTS) {
  const length = points.x.length;
  if (length <= most) return points;
  const stretch = Math.ceil(length / (most / 2));
  const x = [];
  const y = [];
  for (let begin = 0; begin < length; begin += stretch) {
    let low = begin;
    let high = begin;
    for (let index = begin; index < Math.min(begin + stretch, length); index += 1) {
      if (points.y[index] < points.y[low]) low = index;
      if (points.y[index] > points.y[high]) high = index;
    }
    for (const index of low === high ? [low] : [Math.min(low, high), Math.max(low, high)]) {
      x.push(points.x[index]);
      y.push(points.y[index]);
    }
  }
  return { x, y };
}

// plotly reads names as a little HTML of its own.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The colour variable of curve `index`, from 0. */
export const curve = (index) => `--curve-${(index % 6) + 1}`;

/**
 * A drawing of one or more panels, one below the other, on one x axis.
 * panels: [{title, range?, zero? (the axis begins there), curves: [{name, x, y, colour, dash?, markers?}]}];
 * axis: {title, type}; label: what it shows.
 * draw(panels, axis) may be called as often as there is news: it draws once a frame at most.
 */
export function chart(label, kind = "scatter") {
  const plot = el("div", { class: "chart", role: "img", "aria-label": label });
  const said = el("p", { class: "muted chart-said" }, "");
  const whole = el("figure", { class: "figure" }, plot, said);
  let wanted = null;
  let frame = null;
  const self = { whole, draw, redraw: () => wanted && draw(...wanted), close };
  drawn.add(self);

  function draw(panels, axis) {
    wanted = [panels, axis];
    plot.dataset.panels = panels.length;
    plot.dataset.points = panels.flatMap((panel) => panel.curves).reduce((sum, each) => sum + each.x.length, 0);
    frame ??= requestAnimationFrame(paint);
  }

  async function paint() {
    try {
      const plotly = await load();
      frame = null;
      if (!drawn.has(self) || !plot.isConnected) return;
      const [panels, axis] = wanted;
      await plotly.react(plot, traces(panels, kind, plot), layout(panels, axis, plot), OPTIONS);
      put(said, "");
    } catch (error) {
      frame = null;
      put(said, error.message);
    }
  }

  function close() {
    drawn.delete(self);
    if (frame) cancelAnimationFrame(frame);
    if (window.Plotly && plot.classList.contains("js-plotly-plot")) window.Plotly.purge(plot);
  }

  return self;
}

/** Times as the rest of the page has them; what follows a line break is written where it changes. */
const DATES = {
  hoverformat: "%-d %b %Y, %H:%M:%S",
  tickformatstops: [
    { dtickrange: [null, 999], value: "%H:%M:%S.%L\n%-d %b %Y" },
    { dtickrange: [1000, 59999], value: "%H:%M:%S\n%-d %b %Y" },
    { dtickrange: [60000, 86399999], value: "%H:%M\n%-d %b %Y" },
    { dtickrange: [86400000, null], value: "%-d %b\n%Y" },
  ],
};

const OPTIONS = { displayModeBar: false, responsive: true, doubleClick: "reset" };

/** Draws every chart again, in the colours of the theme that was chosen. */
export function redraw() {
  for (const each of drawn) each.redraw();
}

function traces(panels, kind, plot) {
  return panels.flatMap((panel, index) =>
    panel.curves.map((each) => ({
      ...(kind === "bar" ? { x: each.x, y: each.y } : thin(each)),
      type: kind,
      name: plain(shortName(each, plot)),
      showlegend: panel.curves.length > 1, // one curve alone is named by its panel
      xaxis: "x",
      yaxis: index ? `y${index + 1}` : "y",
      ...(kind === "bar"
        ? { marker: { color: colour(each.colour) } }
        : {
            mode: (each.markers && each.x.length < 60) || each.x.length < 2 ? "lines+markers" : "lines",
            line: { color: colour(each.colour), width: 2, dash: each.dash ?? "solid" },
            marker: { color: colour(each.colour), size: 6 },
          }),
      hovertemplate: `%{y:.4~g}${each.unit ? ` ${plain(each.unit)}` : ""}<extra>${plain(shortName(each, plot))}</extra>`,
    })),
  );
}

/** What a curve is called where there is room for so many letters. */
function shortName({ name }, plot) {
  const text = String(name);
  const most = Math.min(40, Math.floor((plot.clientWidth - 60) / 8));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** Rows that the legend takes below a narrow chart, at about 7 pixels a letter. */
function legendRows(panels, plot) {
  const named = panels.filter((panel) => panel.curves.length > 1).flatMap((panel) => panel.curves);
  const widest = Math.max(0, ...named.map((each) => 7 * shortName(each, plot).length + 50));
  return Math.ceil(named.length / Math.max(1, Math.floor(plot.clientWidth / widest)));
}

function layout(panels, axis, plot) {
  const ink = colour("--muted");
  const line = colour("--line");
  const space = 0.09;
  const height = (1 - space * (panels.length - 1)) / panels.length;
  const narrow = plot.clientWidth < 500;
  const below = (axis.type === "date" ? 65 : 50) + (narrow ? 20 * legendRows(panels, plot) : 0);
  const shared = { gridcolor: line, linecolor: line, zerolinecolor: line, tickfont: { size: 12 } };
  const made = {
    barmode: "stack",
    autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
    margin: { l: narrow ? 44 : 56, r: 10, t: 32, b: below },
    showlegend: panels.some((panel) => panel.curves.length > 1),
    legend: narrow
      ? { orientation: "h", x: 0, xref: "container", y: 0, yref: "container", yanchor: "bottom", font: { size: 12 } }
      : { orientation: "h", x: 1, xanchor: "right", y: 1, yanchor: "bottom", font: { size: 12 } },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--card"), bordercolor: line, font: { color: colour("--ink") } },
    dragmode: "zoom",
    uirevision: axis.title, // a zoom stays while points come
    xaxis: {
      ...shared,
      title: { text: plain(axis.title), font: { size: 12 }, standoff: axis.type === "date" ? 2 : 8 },
      type: axis.type ?? "linear",
      anchor: panels.length > 1 ? `y${panels.length}` : "y",
      showgrid: false,
      nticks: narrow ? 5 : 9,
      ticks: "outside", // below the other axis's zero
      ticklen: 5,
      tickcolor: "rgba(0,0,0,0)",
      ...(axis.type === "date" ? DATES : {}),
    },
    annotations: panels.map((panel, index) => ({
      text: plain(panel.title),
      xref: "paper",
      yref: "paper",
      x: 0,
      xanchor: "left",
      y: 1 - index * (height + space),
      yanchor: "bottom",
      yshift: 6, // above the axis's topmost number
      showarrow: false,
      font: { size: 12.5, color: colour("--ink") },
    })),
  };
  panels.forEach((panel, index) => {
    const top = 1 - index * (height + space);
    made[index ? `yaxis${index + 1}` : "yaxis"] = {
      ...shared,
      domain: [Math.max(0, top - height), top],
      anchor: "x",
      zeroline: false,
      nticks: 5,
      rangemode: panel.zero ? "tozero" : "normal",
      tickformat: panel.format ?? ",~g",
      ...(panel.range ? { range: panel.range } : {}),
    };
  });
  return made;
}
