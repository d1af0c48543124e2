"""Rules for CUDA code. The toolkit is @cuda (third_party/cuda.bzl); without one, targets for a device are not made.

mantissa_cuda_library(name, srcs, hdrs, deps, cuda_deps, native_deps, emulated_deps, native_srcs, emulated_srcs, may_spill, ...)
    Two targets from the same sources:
      name             if CUDA_AVAILABLE: nvcc compiles the sources `*.cu.cc`, one action each; the host compiler all others.
                       Links the CUDA runtime.
      name_emulated    always: the host compiler compiles every source, as C++
    `native_*` and `emulated_*` (srcs, hdrs, deps) belong to one of them. `cuda_deps` are other mantissa_cuda_library targets:
    unchanged in `name`, with `_emulated` appended in `name_emulated`.
    Device code is not linked across files: a __device__ function that several files use is inline, in a header.
    A kernel that spills registers is an error, except those in `may_spill`, a dictionary from a source to architectures.
    A third target, name_cubins, is built by `tools/test --slow` (tag every-arch): the device code for each architecture that
    the toolkit knows, whatever the flag below says.

It takes the attributes of cc_library, less `copts`, `defines` and `local_defines`. `srcs` must be a plain list (no select),
because the suffix selects the compiler. Warnings are errors, nvcc's as well. nvcc gets the project's own options, not those of sanitizers: its objects link into
sanitized programs, uninstrumented. Of --copt it takes -D, -U and -W.

Architectures of programs: --//tools/build:cuda_archs=sm_80,sm_90a (default sm_90a). In C++ they are in "core/cuda/cuda_archs.h"
(//core/cuda:cuda_archs), so that the program can refuse a device for which it holds no code.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@cuda//:defs.bzl", "CUDA_AVAILABLE", "CUDA_VERSION", "NVCC")
load("//tools/build:defs.bzl", "COPTS", "mantissa_cc_library")

# sm_80: A100. sm_89: L4, L40, RTX 40. sm_90a: H100, H200. sm_100a: B200. The suffix a: with the instructions of just this one.
_ARCHS = ["sm_80", "sm_89", "sm_90a", "sm_100a"]

# The first nvcc that supports them, if newer than the oldest nvcc of third_party/cuda.bzl.
_FIRST_NVCC = {"sm_100a": [12, 8]}

def _is_known_to_nvcc(arch):
    return [int(part) for part in CUDA_VERSION.split(".")[:2]] >= _FIRST_NVCC.get(arch, [])

_NVCC_OPTIONS = [
    "-std=c++20",
    "-O3",
    "-lineinfo",  # source lines for profilers and compute-sanitizer; costs nothing at run time
    "--expt-relaxed-constexpr",
    "-Werror=all-warnings",
    # fmt before version 10 takes nvcc for a compiler without constexpr, which breaks its own consteval functions.
    "-DFMT_USE_CONSTEXPR=1",
]

CudaArchsInfo = provider(doc = "Architectures to compile for.", fields = {"names": "list of sm_..., in the order of _ARCHS"})

def _cuda_archs_impl(ctx):
    given = ctx.build_setting_value
    unknown = [arch for arch in given if arch not in _ARCHS]
    if unknown or not given:
        fail("\n\n--//tools/build:cuda_archs: expected one or more of %s, separated by commas, got '%s'\n" %
             (", ".join(_ARCHS), ",".join(given)))
    for arch in given:
        if CUDA_AVAILABLE and not _is_known_to_nvcc(arch):
            fail("\n\n--//tools/build:cuda_archs: %s needs CUDA %s or newer, and this build uses %s (%s): name another toolkit by CUDA_HOME\n" %
                 (arch, ".".join([str(part) for part in _FIRST_NVCC[arch]]), CUDA_VERSION, NVCC))
    return [CudaArchsInfo(names = [arch for arch in _ARCHS if arch in given])]

cuda_archs = rule(
    implementation = _cuda_archs_impl,
    build_setting = config.string_list(flag = True),
    doc = "The flag --//tools/build:cuda_archs.",
)

def _cuda_archs_source_impl(ctx):
    names = ctx.attr.archs[CudaArchsInfo].names
    ctx.actions.write(ctx.outputs.out, """\
// GPU architectures: those for which this build holds device code, and those for which a build can. Generated.
#pragma once

#include <string_view>

namespace mantissa {{

inline constexpr std::string_view kCudaArchs[] = {{{names}}};
inline constexpr std::string_view kBuildableCudaArchs[] = {{{buildable}}};

}}  // namespace mantissa
""".format(
        names = ", ".join(["\"%s\"" % name for name in names]),
        buildable = ", ".join(["\"%s\"" % name for name in _ARCHS]),
    ))
    return [DefaultInfo(files = depset([ctx.outputs.out]))]

cuda_archs_source = rule(
    implementation = _cuda_archs_source_impl,
    attrs = {
        "archs": attr.label(mandatory = True, providers = [CudaArchsInfo]),
        "out": attr.output(mandatory = True),
    },
    doc = "A header with the architectures.",
)

# Without nvcc, or in a host function below it, `#pragma unroll` is unknown.
_HOST_COPTS = ["-Wno-unknown-pragmas"]

def _host_options(options):
    # nvcc takes a comma for the end of an option.
    return ["-Xcompiler=" + option.replace(",", "\\,") for option in options]

def _include_options(ctx, context):
    quote = [ctx.label.workspace_root or ".", ctx.bin_dir.path] + context.quote_includes.to_list()
    system = context.system_includes.to_list()
    if hasattr(context, "external_includes"):  # Bazel 5 and newer
        system += context.external_includes.to_list()
    options = ["-I" + folder for folder in context.includes.to_list()]
    options += _host_options([word for folder in depset(quote).to_list() for word in ["-iquote", folder]])
    return options + [word for folder in system for word in ["-isystem", folder]]

def _command_line_options(ctx, prefixes):
    return [word for word in ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts if word[:2] in prefixes]

def _define_options(ctx, context):
    defines = context.defines.to_list()
    if ctx.var["COMPILATION_MODE"] == "opt":
        defines.append("NDEBUG")
    return ["-D" + define for define in defines] + _command_line_options(ctx, ["-D", "-U"])

# UNUSED HEADERS COMMAND...: runs the command with -MD, and writes to UNUSED the HEADERS that it did not read, so
# Bazel does not compile again when they change. Fails if a kernel has a trap: nvcc compiles device code that takes the address
# of a constant of the host to a trap, without a warning.
_COMPILE = """
unused=$1 headers=$2
shift 2
kept=$(mktemp -d) || exit
trap 'rm -rf "$kept"' EXIT
"$@" -MD -MF "$unused.d" --keep --keep-dir "$kept" || exit
traps=$(grep -hE '^\\.(visible |weak )*(entry|func) |^\ttrap;' "$kept"/*.ptx | grep -B 1 trap | grep -oE '_Z[0-9A-Za-z_]+')
if [[ -n "$traps" ]]; then
  echo "device code of these functions traps, because it refers to a host function or to the address of a host constant:" $traps >&2
  exit 1
fi
tr -s ' \\\\' '\\n' <"$unused.d" | sed 's|^\\./||' | grep -vxF -f - "$headers" >"$unused" || :
rm "$unused.d"
"""

def _compile(ctx, source, suffix, archs, options):
    """Makes TARGET/SOURCE + suffix. Returns that file."""
    toolchain = find_cpp_toolchain(ctx)
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    compiled = ctx.actions.declare_file("%s/%s%s" % (ctx.label.name, source.basename[:-len(".cu.cc")], suffix))
    arguments = ["-x", "cu", "-ccbin", toolchain.compiler_executable] + _NVCC_OPTIONS
    for arch in archs:
        arguments.append("-gencode=arch=%s,code=%s" % (arch.replace("sm_", "compute_"), arch))
    arguments += _host_options(COPTS + _HOST_COPTS + ["-fPIC"] + _command_line_options(ctx, ["-W"]))
    arguments += _define_options(ctx, context) + _include_options(ctx, context)
    unused = ctx.actions.declare_file(compiled.basename + ".unused", sibling = compiled)
    headers = depset(ctx.files.hdrs, transitive = [context.headers])
    listed = ctx.actions.args()
    listed.add_all(headers)
    listed.use_param_file("%s", use_always = True)
    listed.set_param_file_format("multiline")
    ctx.actions.run(
        executable = "/bin/bash",
        arguments = ["-c", _COMPILE, "nvcc", unused.path, listed, NVCC] + arguments + options + [source.path, "-o", compiled.path],
        inputs = depset([source], transitive = [headers, toolchain.all_files]),
        outputs = [compiled, unused],
        unused_inputs_list = unused,
        # nvcc is no input: its version in the environment forces recompilation after a change in the same folder.
        env = {"CUDA_VERSION": CUDA_VERSION, "PATH": "/usr/bin:/bin"},
        mnemonic = "CudaCompile",
        progress_message = "Compiling %s for %s" % (source.short_path, ", ".join(archs)),
    )
    return compiled

# Spills depend on the version of ptxas. Other versions only compile, without the check.
_SPILLS_CHECKED_WITH = "13.0."

def _spill_options(ctx, source, archs):
    """Makes a kernel that spills an error, except where it may."""
    allowed = ctx.attr.may_spill.get(source.basename, [])
    if not CUDA_VERSION.startswith(_SPILLS_CHECKED_WITH) or [arch for arch in archs if arch in allowed]:
        return []
    return ["-Xptxas=-warn-spills,-Werror"]

def _nvcc_objects_impl(ctx):
    archs = ctx.attr._archs[CudaArchsInfo].names
    objects = []
    for source in ctx.files.srcs:
        objects.append(_compile(ctx, source, ".o", archs, ["-c"] + _spill_options(ctx, source, archs)))
    return [DefaultInfo(files = depset(objects))]

def _nvcc_cubins_impl(ctx):
    cubins = []
    for source in ctx.files.srcs:
        for arch in [arch for arch in _ARCHS if _is_known_to_nvcc(arch)]:
            options = ["-cubin"] + _spill_options(ctx, source, [arch])
            cubins.append(_compile(ctx, source, ".%s.cubin" % arch, [arch], options))
    return [DefaultInfo(files = depset(cubins))]

def _nvcc_rule(implementation, **attrs):
    return rule(
        implementation = implementation,
        attrs = dict(
            attrs,
            deps = attr.label_list(providers = [CcInfo]),
            hdrs = attr.label_list(allow_files = True),
            may_spill = attr.string_list_dict(),
            srcs = attr.label_list(allow_files = [".cu.cc"]),
            _cc_toolchain = attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        ),
        fragments = ["cpp"],
        toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    )

_nvcc_objects = _nvcc_rule(_nvcc_objects_impl, _archs = attr.label(default = "//tools/build:cuda_archs"))
_nvcc_cubins = _nvcc_rule(_nvcc_cubins_impl)

def _emulated(label):
    """':x' -> ':x_emulated', '//a/b:c' -> '//a/b:c_emulated', '//a/b' -> '//a/b:b_emulated'."""
    if ":" not in label and "//" in label:
        label = "%s:%s" % (label, label.split("/")[-1])
    return label + "_emulated"

def mantissa_cuda_library(
        name,
        srcs = [],
        hdrs = [],
        deps = [],
        cuda_deps = [],
        native_srcs = [],
        native_hdrs = [],
        native_deps = [],
        may_spill = {},
        emulated_srcs = [],
        emulated_deps = [],
        **kwargs):
    if CUDA_AVAILABLE:
        every_dep = deps + native_deps + cuda_deps
        sources = srcs + native_srcs
        kernels = [source for source in sources if source.endswith(".cu.cc")]
        others = [source for source in sources if source not in kernels]
        if kernels:
            shared = {
                # The runtime's headers come with nvcc, so the sandbox does not need them again.
                "deps": every_dep,
                "hdrs": hdrs + native_hdrs + [source for source in others if source.endswith(".h")],
                "may_spill": may_spill,
                "srcs": kernels,
                "testonly": kwargs.get("testonly", False),
                "visibility": ["//visibility:private"],
            }
            tags = kwargs.get("tags", [])
            _nvcc_objects(name = name + "_nvcc", tags = tags, **shared)
            _nvcc_cubins(name = name + "_cubins", tags = tags + ["every-arch"], **shared)
            others = others + [":%s_nvcc" % name]
        mantissa_cc_library(
            name = name,
            srcs = others,
            hdrs = hdrs + native_hdrs,
            deps = every_dep + [label for label in ["@cuda//:cudart"] if label not in every_dep],
            **kwargs
        )
    mantissa_cc_library(
        name = name + "_emulated",
        srcs = srcs + emulated_srcs,
        hdrs = hdrs,
        copts = _HOST_COPTS,
        deps = deps + emulated_deps + [_emulated(label) for label in cuda_deps],
        **kwargs
    )
