"""Libraries of the system as Bazel repositories.

`pkg_config_library(name = "fmt", packages = ["fmt"], debian_package = "libfmt-dev")` makes `@fmt//:fmt`, with the
compiler and linker flags that pkg-config gives. A `packages` entry `a|b` takes the first of the two that exists.
`extra_targets = {"gtest_main": ["gtest_main"]}` makes further targets in the same repository.

`system_library(name = "onednn", library = "dnnl", header = "dnnl.hpp", ...)` is for a library without a .pc file: the
compiler and the linker find it by themselves.

Include folders outside the compiler's own are linked into the repository, so that the sandbox sees the headers and no path of
a machine stands in a BUILD file. A library that is absent is an error which names it and the Debian package.
Environment: PKG_CONFIG (the program), PKG_CONFIG_PATH (where it looks), CXX (the compiler).
"""

_MISSING = """

The library '{library}' was not found: {reason}
On Debian or Ubuntu: apt install {debian_package}   (or run tools/setup, which installs everything that is missing)
Elsewhere: install its development files; for a .pc file in an unusual folder set PKG_CONFIG_PATH.
"""

def _fail_missing(ctx, library, reason):
    fail(_MISSING.format(library = library, reason = reason, debian_package = ctx.attr.debian_package))

def _tool(ctx, variable, default, debian_package):
    name = ctx.os.environ.get(variable, default)
    path = ctx.which(name) if not name.startswith("/") else ctx.path(name)
    if path == None:
        fail("\n\n'%s' is not installed. On Debian or Ubuntu: apt install %s\n" % (name, debian_package))
    return path

def _query(ctx, pkg_config, package):
    """The flags of the first existing alternative of `package`, as a list of words."""
    alternatives = package.split("|")
    for alternative in alternatives:
        result = ctx.execute([pkg_config, "--cflags", "--libs", alternative])
        if result.return_code == 0:
            return [word for word in result.stdout.replace("\n", " ").split(" ") if word]
    _fail_missing(ctx, ctx.name, "pkg-config knows no package '%s'" % "' or '".join(alternatives))
    return []

def _cc_library(name, folders = [], defines = [], linkopts = []):
    # `includes` are passed as -isystem: our warnings do not apply to headers of the system.
    return """
cc_library(
    name = %r,
    hdrs = glob([f + "/**" for f in %r], allow_empty = True, exclude = ["**/*.mod", "**/*.cmake"]),
    defines = %r,
    includes = %r,
    linkopts = %r,
    visibility = ["//visibility:public"],
)
""" % (name, folders, defines, folders, linkopts)

def _add_once(items, item):
    if item not in items:
        items.append(item)

def _pkg_config_target(ctx, pkg_config, name, packages, folder_of):
    defines = list(ctx.attr.defines)
    folders = []
    linkopts = []
    for package in packages:
        for word in _query(ctx, pkg_config, package):
            if word.startswith("-I"):
                path = word[2:]
                if path not in folder_of:
                    folder_of[path] = "include%d" % len(folder_of)
                    ctx.symlink(path, folder_of[path])
                _add_once(folders, folder_of[path])
            elif word.startswith("-D"):
                _add_once(defines, word[2:])
            elif word.startswith("-L"):
                _add_once(linkopts, word)
                _add_once(linkopts, "-Wl,-rpath," + word[2:])
            else:  # -l…, -pthread, -Wl,…
                _add_once(linkopts, word)
    return _cc_library(name, folders, defines, linkopts = linkopts)

def _pkg_config_library_impl(ctx):
    pkg_config = _tool(ctx, "PKG_CONFIG", "pkg-config", "pkg-config")
    folder_of = {}
    text = _pkg_config_target(ctx, pkg_config, ctx.name, ctx.attr.packages, folder_of)
    for name, packages in ctx.attr.extra_targets.items():
        text += _pkg_config_target(ctx, pkg_config, name, packages, folder_of)
    ctx.file("BUILD", text)

pkg_config_library = repository_rule(
    implementation = _pkg_config_library_impl,
    attrs = {
        "packages": attr.string_list(mandatory = True, doc = "pkg-config names, each possibly with |alternatives"),
        "extra_targets": attr.string_list_dict(doc = "further targets: name to its pkg-config names"),
        "defines": attr.string_list(doc = "defines beyond those that pkg-config gives"),
        "debian_package": attr.string(mandatory = True),
    },
    configure = True,
    environ = ["PKG_CONFIG", "PKG_CONFIG_PATH"],
    local = True,
)

def _system_library_impl(ctx):
    compiler = _tool(ctx, "CXX", "g++", "g++")
    ctx.file("probe.cc", "#include <%s>\nint main() { return 0; }\n" % ctx.attr.header)
    compile_only = ctx.execute([compiler, "-std=c++17", "-fsyntax-only", "probe.cc"])
    if compile_only.return_code != 0:
        _fail_missing(ctx, ctx.attr.library, "the compiler does not find its header <%s>:\n%s" %
                                             (ctx.attr.header, compile_only.stderr[:400]))
    link = ctx.execute([compiler, "-std=c++17", "probe.cc", "-o", "probe", "-l" + ctx.attr.library])
    if link.return_code != 0:
        _fail_missing(ctx, ctx.attr.library, "the linker does not accept -l%s:\n%s" %
                                             (ctx.attr.library, link.stderr[:400]))
    ctx.file("BUILD", _cc_library(ctx.name, linkopts = ["-l" + ctx.attr.library]))

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "library": attr.string(mandatory = True, doc = "name for the linker, without -l"),
        "header": attr.string(mandatory = True, doc = "a header which the compiler must find"),
        "debian_package": attr.string(mandatory = True),
    },
    configure = True,
    environ = ["CPATH", "CXX", "LIBRARY_PATH"],
    local = True,
)
