// MathJax writes formulas as MathML, which browsers draw themselves: a page opened from a file may load no fonts.
window.MathJax = {
  config: ["TeX-AMS-MML_HTMLorMML-full.js"],
  jax: ["input/TeX", "output/NativeMML"],
  extensions: ["tex2jax.js"],
  "HTML-CSS": { availableFonts: [], webFont: "STIX-Web", imageFont: null }, // started in any case, then not used
  tex2jax: { ignoreClass: "bd-sidebar|mc-plot|cell_input" },
  menuSettings: { assistiveMML: false },
  showMathMenu: false,
  messageStyle: "none",
  AuthorInit: function () {
    const hub = window.MathJax.Hub;
    hub.Register.StartupHook("End Jax", () => hub.setRenderer("NativeMML"));
  },
};
