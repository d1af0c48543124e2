"""Pages: HTML, style and script as a C++ constant, so that the program needs no files beside it.

    load("//tools/lab/report/page:defs.bzl", "page_sources")

page_sources(name, constant, header, html, styles, scripts)
    Writes NAME.cc, which defines `constant`, declared in `header` as `extern const PageSources`. The styles and scripts that
    pages share stand before the page's own, each list in the order in which it stands in the page.
"""

_SHARED = "//tools/lab/report/page:"
_STYLES = [_SHARED + "base.css"]
_SCRIPTS = [_SHARED + script for script in ["values.js", "dom.js", "scale.js", "loss_scale.js"]]

def _locations(labels):
    return " ".join(["$(location %s)" % label for label in labels])

def page_sources(name, constant, header, html, styles, scripts):
    embed = _SHARED + "embed.sh"
    all_styles = _STYLES + styles
    all_scripts = _SCRIPTS + scripts
    native.genrule(
        name = name,
        srcs = [html] + all_styles + all_scripts,
        outs = [name + ".cc"],
        cmd = "$(location %s) %s %s $(location %s) -- %s -- %s > $@" %
              (embed, header, constant, html, _locations(all_styles), _locations(all_scripts)),
        tools = [embed],
    )
