"""The project's C++ rules: Bazel's own with our warnings, OpenMP and GoogleTest added.

mantissa_cc_library(name, srcs, hdrs, exclude, deps, ...)
    cc_library, one for each package: `srcs` and `hdrs` are all *.cc and *.h of its folders unless given, less those in `exclude`.
    Its files, like those of a test, are compiled in batches (_BATCH), except in _NOT_BATCHED.
    Each package's default_visibility enforces the floors: core is seen by all; amp, comm and models by tools and tests, not by
    each other; tools by tools and tests; tools/lab by the program's verbs and tests.
mantissa_cc_binary(name, srcs, deps, ...)
    cc_binary.
mantissa_cc_test(name, srcs, deps, size = "small", ...)
    cc_test with GoogleTest and its main(). One for each folder: `srcs` are all *_test.cc unless given. Runs with
    OMP_NUM_THREADS=2.
mantissa_mpi_test(name, binary, ranks, args = [], size = "medium", tags = [], data = [], ...)
    Runs `binary` (a mantissa_cc_binary, usually testonly = True) as `mpirun -np RANKS binary ARGS`; fails if any rank fails. If the
    binary is a GoogleTest program, the cases are rank 0's. OMP_NUM_THREADS is 1 in each rank; --test_env=OMP_PER_RANK=N changes that.

All take every further attribute of the native rule. In tools and tests, `deps` omits libraries that another one brings.
`copts` are added to COPTS. Warnings are errors in our own code; headers of other libraries come through -isystem and are exempt.

Tags that tools/test knows:
    mpi          set by mantissa_mpi_test; such tests are left out of the sanitizer runs of tools/test, which are for unit tests
    no-sanitize  left out of the sanitizer runs
    seldom-sanitized  left out of these unless --slow is given; set by BUILD files, by mantissa_cc_test for the packages in
                 _SELDOM_SANITIZED, and by device_test for the emulated GPU
    with-all     left out of tools/test; run by tools/test --all
    slow         left out of tools/test; run by tools/test --slow, or by its name
    every-arch   no test: kernels for all GPU architectures; left out of tools/test, compiled by tools/test --slow
    cpu:2        Bazel's own: no other test beside one that compares times
    gpu          needs a GPU: built by tools/test --all, run by tools/gpu_check
    manual       left out of `//...` by Bazel
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# default_visibility of the floors below the tools, of the floors that only comm sees beside them, and of the laboratory.
SEEN_FROM_TOOLS = ["//tests:__subpackages__", "//tools:__subpackages__"]
SEEN_FROM_COMM = ["//comm:__subpackages__"] + SEEN_FROM_TOOLS
SEEN_FROM_LAB = ["//tests:__subpackages__", "//tools:__pkg__", "//tools/lab:__subpackages__"]

COPTS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fopenmp",
]

LINKOPTS = ["-fopenmp"]

# These take three quarters of a sanitizer run: the program above core and comm, and profiles, which handle little memory; the
# emulated GPU, whose kernels are tested on guarded memory; and tests of numbers (tests/core/kernels sanitizes the kernels).
_SELDOM_SANITIZED = [
    "tests/core/cpu",
    "tests/core/cuda",
    "tests/core/profile",
    "tests/core/quant",
    "tests/experiments",
    "tests/reference",
    "tests/tools",
]

# Tests are half of the compiled code and little of the executed code. Sanitizers examine the program: checks of each
# dereference would make up most of a test's code, and the address sanitizer reports null pointers anyway.
_TEST_COPTS = ["-O0", "-U_FORTIFY_SOURCE"]

# The address sanitizer's checks are calls in tests: slower than inline code, and compiled in two thirds of the time.
_TEST_SANITIZED_COPTS = [
    "-fno-sanitize=null",
    "-fno-sanitize=alignment",
    "-fno-sanitize=vptr",
    "--param=asan-instrumentation-with-call-threshold=0",
]

# References of kernels, sums of experiments and checks of exchanged buffers are loops: unoptimised or instrumented, tests would
# spend most of their time there. -O2 would take longer to compile than it saves.
_ARITHMETIC = ["tests/comm", "tests/core/cpu", "tests/core/kernels", "tests/experiments", "tests/reference"]
_ARITHMETIC_COPTS = ["-O1"]
_ARITHMETIC_SANITIZED_COPTS = ["-fno-sanitize=all"]

# Files of a folder are compiled eight at a time, in a third of the time of eight compilations: all parse the same headers. They
# share an anonymous namespace, so two helpers must not have the same name, unless each is in a namespace named after its file. Kernels and
# devices are compiled file by file: Highway compiles a file once per instruction set, and an edit should be quick to try.
_BATCH = 8
_NOT_BATCHED = ["core/cpu", "core/cuda", "core/kernels"]

# Headers of other projects that most files of a kind include. Our own would compile every file again when one changes.
_INCLUDES = ["algorithm", "cmath", "functional", "map", "memory", "optional", "string", "vector", "fmt/core.h"]
_TEST_INCLUDES = ["gtest/gtest.h"] + _INCLUDES
_TOOL_INCLUDES = ["nlohmann/json.hpp"]

# Kernels and collectives take the time of a run, not tools: -O1 saves a fifth of their compile time.
_TOOL_COPTS = ["-O1"]

def _is_in(folders):
    package = native.package_name()
    return bool([name for name in folders if package == name or package.startswith(name + "/")])

def _kind():
    if not _is_in(["tests"]):
        return "tool" if _is_in(["tools"]) else "library"
    return "tool_test" if _is_in(["tests/tools"]) else "arithmetic" if _is_in(_ARITHMETIC) else "test"

def _copts(kind):
    usual, sanitized = {
        "arithmetic": (_ARITHMETIC_COPTS, _ARITHMETIC_SANITIZED_COPTS),
        "library": ([], []),
        "test": (_TEST_COPTS, _TEST_SANITIZED_COPTS),
        "tool": (_TOOL_COPTS, []),
        "tool_test": (_TEST_COPTS, _TEST_SANITIZED_COPTS),
    }[kind]
    return COPTS + usual + select({
        "//tools/build:sanitized": sanitized,
        "//conditions:default": [],
    })

# Headers that most files include, parsed once for each set of compiler options. A target that depends on NAME.h and has the options
# ["-include", "PACKAGE/NAME.h"] and exactly these `copts` reads NAME.h.gch. GCC checks that the options agree: with -Winvalid-pch a
# difference is a warning, and so an error here. With -fpch-deps, GCC names the headers within NAME.h.gch among the files that a target
# has read (it knows them from -MD here), so that Bazel compiles the target again when they change.
def _precompiled_header_impl(ctx):
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.write(header, "".join(['#include "%s"\n' % include for include in ctx.attr.includes]))

    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(ctx = ctx, cc_toolchain = toolchain)
    infos = [dep[CcInfo] for dep in ctx.attr.deps]
    context = cc_common.merge_cc_infos(cc_infos = infos).compilation_context
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
        include_directories = context.includes,
        quote_include_directories = context.quote_includes,
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
    )
    compiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    included = ctx.actions.declare_file(ctx.label.name + ".d")
    options = dict(feature_configuration = features, action_name = CPP_COMPILE_ACTION_NAME)
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(**options),
        arguments = cc_common.get_memory_inefficient_command_line(variables = variables, **options) +
                    ["-x", "c++-header", "-c", header.path, "-o", compiled.path, "-MD", "-MF", included.path],
        env = cc_common.get_environment_variables(variables = variables, **options),
        inputs = depset([header], transitive = [context.headers, toolchain.all_files]),
        outputs = [compiled, included],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling the headers %s" % ctx.label,
    )
    own = CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset([header, compiled])))
    return [cc_common.merge_cc_infos(cc_infos = [own] + infos)]

_precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "includes": attr.string_list(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    doc = "NAME.h, which includes `includes`, and NAME.h.gch from it.",
)

def precompiled_headers():
    for kind in ["library", "test", "arithmetic", "tool", "tool_test"]:
        is_test, is_tool = kind not in ["library", "tool"], kind.startswith("tool")
        _precompiled_header(
            name = kind + "_headers",
            copts = _copts(kind),
            includes = (_TEST_INCLUDES if is_test else _INCLUDES) + (_TOOL_INCLUDES if is_tool else []),
            deps = ["@fmt"] + (["@gtest"] if is_test else []) + (["@nlohmann_json"] if is_tool else []),
        )

def _batches_impl(ctx):
    folders = {}
    for source in ctx.files.srcs:
        folders.setdefault(source.dirname, []).append(source)
    batches = []
    for sources in folders.values():
        count = (len(sources) + _BATCH - 1) // _BATCH
        for i in range(count):
            batch = ctx.actions.declare_file("%s_%d.cc" % (ctx.label.name, len(batches) + 1))
            part = sources[len(sources) * i // count:len(sources) * (i + 1) // count]
            ctx.actions.write(batch, "".join(["#include \"%s\"\n" % source.path for source in part]))
            batches.append(batch)
    context = cc_common.create_compilation_context(headers = depset(ctx.files.srcs))
    return [DefaultInfo(files = depset(batches)), CcInfo(compilation_context = context)]

_batches = rule(
    implementation = _batches_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cc"])},
    doc = "Files that include `srcs` of one folder, at most _BATCH each.",
)

def _batched(name, srcs, options):
    """Returns `srcs` with batches instead of *.cc, and adds the dependency that these need to `options`."""
    sources = [file for file in srcs if file.endswith(".cc")]
    if len(sources) < 2 or _is_in(_NOT_BATCHED):
        return srcs
    batches = name + "_batches"
    _batches(name = batches, srcs = sources, testonly = _is_in(["tests"]))
    options["deps"] = options["deps"] + [":" + batches]

    # GCC takes the included files for headers.
    one_by_one, default = "//tools/build:not_precompiled", "//conditions:default"
    options["copts"] = options["copts"] + select({one_by_one: [], default: ["-Wno-subobject-linkage"]})
    return [file for file in srcs if file not in sources] + select({one_by_one: sources, default: [":" + batches]})

def _options(kwargs):
    headers = _kind() + "_headers"
    kwargs["copts"] = _copts(_kind()) + kwargs.pop("copts", []) + select({
        "//tools/build:not_precompiled": [],
        "//conditions:default": ["-Winvalid-pch", "-fpch-deps", "-include", "tools/build/%s.h" % headers],
    })
    kwargs["linkopts"] = LINKOPTS + kwargs.pop("linkopts", [])
    kwargs["deps"] = kwargs.pop("deps", []) + ["//tools/build:" + headers]
    return kwargs

def mantissa_cc_library(name, srcs = None, hdrs = None, exclude = [], **kwargs):
    if srcs == None:
        srcs = native.glob(["**/*.cc"], exclude = exclude)
    if hdrs == None:
        hdrs = native.glob(["**/*.h"], exclude = exclude)

    # linkstatic: no shared library beside the archive. Nothing uses one, and without position-independent code (.bazelrc) it
    # could not be linked.
    options = _options(kwargs)
    native.cc_library(name = name, srcs = _batched(name, srcs, options), hdrs = hdrs, linkstatic = True, **options)

def mantissa_cc_binary(name, **kwargs):
    native.cc_binary(name = name, **_options(kwargs))

def mantissa_cc_test(name, srcs = None, deps = [], size = "small", tags = [], **kwargs):
    if srcs == None:
        srcs = native.glob(["*_test.cc"])
    gtest = ["@gtest//:gtest", "@gtest//:gtest_main"]
    options = _options(dict(kwargs, deps = deps + [label for label in gtest if label not in deps]))
    native.cc_test(
        name = name,
        size = size,
        srcs = _batched(name, srcs, options),
        tags = tags + (["seldom-sanitized"] if _is_in(_SELDOM_SANITIZED) else []),
        **options
    )

def mantissa_mpi_test(name, binary, ranks, args = [], size = "medium", tags = [], data = [], **kwargs):
    native.sh_test(
        name = name,
        size = size,
        srcs = ["//tools/build:mpi_test.sh"],
        args = [str(ranks), "$(rootpath %s)" % binary] + args,
        data = data + [binary],
        tags = tags + ["mpi"],
        **kwargs
    )
