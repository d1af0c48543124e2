"""precompiled_header: headers that most files include, parsed once for each set of compiler options.

    load("//tools/build:precompiled.bzl", "precompiled_header")

precompiled_header(name, includes, copts, deps)
    Makes NAME.h, which includes `includes`, and NAME.h.gch from it. A target that depends on it and has the options
    ["-include", "PACKAGE/NAME.h"] and exactly these `copts` reads the second. GCC checks that the options agree: with
    -Winvalid-pch a difference is a warning, and so an error here.
    With -fpch-deps, GCC names the headers within NAME.h.gch among the files that a target has read (it knows them from -MD
    here), so that Bazel compiles the target again when one of them changes.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

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

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "includes": attr.string_list(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    doc = "Headers that are parsed once.",
)
