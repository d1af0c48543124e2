"""Rules for code outside of the tree: plugins of the program, and own programs with the library (tools/bundle --development).

interface_header(name, deps, hdrs)
    Makes NAME.h, which defines MANTISSA_INTERFACE: a hash of `hdrs` and of all our headers that `deps` bring. Code that was compiled
    with other headers must not meet in one process.
development_files(name, public, deps)
    Makes the folder NAME with
      include/               the headers that the file `public` lists, the headers of ours that they include, and those of fmt
      lib/libmantissa.a      one archive of all our libraries that `deps` bring
      lib/*.a                static libraries of a CUDA toolkit
      lib/link_options       what the archive needs: options, and names of the static libraries beside it, one a line
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

_FOLDERS = ("amp/", "comm/", "core/", "models/")

def _own_headers(deps):
    """Our headers that the targets bring, by their paths."""
    headers = {}
    for dep in deps:
        for file in dep[CcInfo].compilation_context.headers.to_list():
            if file.extension == "h" and file.short_path.startswith(_FOLDERS):
                headers[file.short_path] = file
    return headers

def _interface_header_impl(ctx):
    headers = _own_headers(ctx.attr.deps)
    headers.update({file.short_path: file for file in ctx.files.hdrs})
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    arguments = ctx.actions.args()
    arguments.add(header)
    arguments.add_all([headers[path] for path in sorted(headers)])
    ctx.actions.run_shell(
        inputs = headers.values(),
        outputs = [header],
        arguments = [arguments],
        command = """
header=$1
shift
hash=$(cat "$@" | sha256sum | cut -c 1-16)
printf '// A hash of the headers that plugins compile with. Generated.\\n#pragma once\\n\\n#define MANTISSA_INTERFACE "%s"\\n' "$hash" >"$header"
""",
        mnemonic = "InterfaceHeader",
    )
    return [DefaultInfo(files = depset([header]))]

interface_header = rule(
    implementation = _interface_header_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".h"]),
    },
    doc = "A header with a hash of other headers.",
)

def _libraries(deps):
    """The static libraries and linker options of the targets, in link order and each once."""
    libraries, options = {}, {}
    for dep in deps:
        for linked in dep[CcInfo].linking_context.linker_inputs.to_list():
            for library in linked.libraries:
                file = library.static_library or library.pic_static_library
                if file:
                    libraries[file] = None
            for option in linked.user_link_flags:
                options[option] = None
    return libraries.keys(), options.keys()

# OUTPUT LIBRARIES OTHERS OPTIONS PUBLIC COMPILER...: files with paths of our archives, of other ones, and options; the list of headers.
_COPY = """
set -euo pipefail
output=$1 libraries=$2 others=$3 options=$4 public=$5
shift 5
mkdir -p "$output/include/fmt" "$output/lib"
{
  echo "create $output/lib/libmantissa.a"
  sed 's/^/addlib /' "$libraries"
  printf 'save\\nend\\n'
} | ar -M
strip --strip-debug "$output/lib/libmantissa.a"
cp "$options" "$output/lib/link_options"
while read -r library; do
  cp -L "$library" "$output/lib/"
  basename "$library" >>"$output/lib/link_options"
done <"$others"
sed 's/.*/#include "&"/' "$public" | "$@" -x c++ -M - | tr -s ' \\\\' '\\n\\n' | sed 's|^\\./||' | sort -u |
  while read -r header; do
    case "$header" in
      */fmt/*.h) path=fmt/${header##*/} ;;
      amp/* | comm/* | core/* | models/*) path=$header ;;
      bazel-out/*/bin/models/*) path=${header#bazel-out/*/bin/} ;;
      *) continue ;;
    esac
    mkdir -p "$output/include/${path%/*}"
    cp -L "$header" "$output/include/$path"
  done
"""

def _list(ctx, suffix, items):
    file = ctx.actions.declare_file("%s_%s" % (ctx.label.name, suffix))
    ctx.actions.write(file, "".join([item + "\n" for item in items]))
    return file

def _development_files_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    libraries, options = _libraries(ctx.attr.deps)
    own = [file for file in libraries if not file.path.startswith("external/")]
    output = ctx.actions.declare_directory(ctx.label.name)
    lists = [
        _list(ctx, "libraries", [file.path for file in own]),
        _list(ctx, "others", [file.path for file in libraries if file not in own]),
        _list(ctx, "options", options),
        ctx.file.public,
    ]
    compiler = [toolchain.compiler_executable, "-std=c++20", "-iquote", ".", "-iquote", ctx.bin_dir.path]
    for folder in context.system_includes.to_list():
        compiler += ["-isystem", folder]
    ctx.actions.run_shell(
        inputs = depset(lists + libraries, transitive = [context.headers, toolchain.all_files]),
        outputs = [output],
        arguments = [output.path] + [file.path for file in lists] + compiler + ["-D" + define for define in context.defines.to_list()],
        command = _COPY,
        env = {"PATH": "/usr/bin:/bin"},
        mnemonic = "DevelopmentFiles",
        progress_message = "Collecting headers and libraries %s" % ctx.label,
    )
    return [DefaultInfo(files = depset([output]), runfiles = ctx.runfiles(files = [output]))]

development_files = rule(
    implementation = _development_files_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "public": attr.label(allow_single_file = True, mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    doc = "Headers and one archive, for code outside of the tree.",
)
