// Draws every figure of the page from the JSON beside its box, in the colours of the page's theme and to its width.
(function () {
  "use strict";
  const NARROW = 560; // pixels: below, a colour bar goes under its figure and letters shrink
  const INK = { light: ["#20262e", "#e3e6ea", "#9aa2ad"], dark: ["#d5dae1", "#343b45", "#6d7682"] };

  function dress(layout, narrow) {
    const [text, grid, line] = INK[document.documentElement.dataset.theme === "dark" ? "dark" : "light"];
    const style = layout.template.layout;
    style.paper_bgcolor = style.plot_bgcolor = "rgba(0,0,0,0)";
    style.font = Object.assign(style.font || {}, { color: text, size: narrow ? 11 : 13 });
    for (const axis of ["xaxis", "yaxis"]) {
      Object.assign(style[axis], { gridcolor: grid, linecolor: line, tickcolor: line });
    }
    if (narrow) {
      const below = { orientation: "h", y: -0.12, yanchor: "top", len: 0.9, thickness: 10 };
      for (const trace of layout.template.data.heatmap || []) Object.assign(trace.colorbar, below);
      Object.assign(style.margin, { l: 4, r: 4 });
    }
    return layout;
  }

  function draw(box) {
    const spec = JSON.parse(box.parentElement.querySelector('script[type="application/json"]').textContent);
    const narrow = box.clientWidth < NARROW;
    if (!box.classList.contains("js-plotly-plot")) box.textContent = "";
    const config = { responsive: true, displayModeBar: false, scrollZoom: false };
    return Plotly.react(box, spec.data, dress(spec.layout, narrow), config);
  }

  const drawAll = () => document.querySelectorAll(".mc-plot > .mc-figure").forEach(draw);

  document.addEventListener("DOMContentLoaded", function () {
    drawAll();
    new MutationObserver(drawAll).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  });
})();
