"""The CUDA toolkit of the system as the Bazel repository @cuda. Nothing is downloaded.

`cuda_toolkit(name = "cuda")` takes the first of: $CUDA_HOME, $CUDA_PATH, the nvcc on PATH, `folders` (/usr/local/cuda, /opt/cuda),
and the `nvidia-*` wheels of PyPI for CUDA 13 in $VIRTUAL_ENV; those for CUDA 12 hold no nvcc. It needs an nvcc of 12.3 or newer
that compiles a small kernel, the runtime's headers of 12.3 or newer, libcudart_static.a and the nvtx3 headers; headers of
cuBLASLt, NCCL and cuDNN are optional. A $CUDA_HOME or $CUDA_PATH which is no toolkit is an error. Without a toolkit one line
says so, and the build is for the CPU only. MANTISSA_CUDA=off forces that; MANTISSA_CUDA=on makes a missing toolkit an error.

    load("@cuda//:defs.bzl", "CUDA_AVAILABLE", "CUDNN_AVAILABLE", "NCCL_AVAILABLE", "CUDA_VERSION", "NVCC")
    @cuda//:cudart              headers of the toolkit, and the CUDA runtime, linked statically
    @cuda//:nvtx                headers only
    @cuda//:cublaslt_headers    headers only: the program opens the libraries of cuBLASLt and NCCL when it runs, so that one
    @cuda//:nccl_headers        program also starts where there is none
    @cuda//:cudnn_headers       likewise of cuDNN 9.8 or newer

A target whose piece is missing exists all the same; building it is an error that names the piece. The repository's file left_out
has a line "CUDA: why", "NCCL: why" or "cuDNN: why" for each that the build goes without; tools/test reads it.
The include folder is linked into the repository, so that the sandbox sees the headers, as one of the system: our warnings do
not apply to it. Environment: also NCCL_HOME and CUDNN_HOME, for headers outside the toolkit, and CC, the host compiler.
"""

# cudaFuncGetName came with 12.3. sm_100a asks for more: tools/build/cuda.bzl.
_OLDEST = [12, 3]
_OLDEST_TEXT = "%d.%d" % (_OLDEST[0], _OLDEST[1])

_PIECES = ("bin/nvcc (%s or newer), include/cuda_runtime.h (likewise), include/nvtx3/nvToolsExt.h and " % _OLDEST_TEXT +
           "lib64/libcudart_static.a")

_WHEELS = ("nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl nvidia-nvtx nvidia-cublas " +
           "nvidia-nccl-cu13 nvidia-cudnn-cu13")

_HOW = ("install the CUDA toolkit from NVIDIA and set CUDA_HOME to its folder, or in a Python virtual environment: " +
        "pip install " + _WHEELS)

_VARIABLES = ["CUDA_HOME", "CUDA_PATH"]

# The wheels for CUDA 13 share one folder with a toolkit's layout; each wheel for CUDA 12 has its own folder.
_CUDA_13_WHEELS = "/nvidia/cu13"
_CUDA_12_WHEEL = "/nvidia/cuda_nvcc"

# A toolkit from NVIDIA, one from conda or for another processor, and Debian's, in this order.
_INCLUDE_FOLDERS = ["include", "targets/x86_64-linux/include", "targets/sbsa-linux/include"]
_LIBRARY_FOLDERS = [
    "lib64",
    "lib",
    "targets/x86_64-linux/lib",
    "targets/sbsa-linux/lib",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
]

def _first_folder_with(ctx, root, folders, file):
    for folder in folders:
        if ctx.path("%s/%s/%s" % (root, folder, file)).exists:
            return "%s/%s" % (root, folder)
    return None

def _nvcc_version(ctx, nvcc):
    """'13.0.88', or None if the program does not say it."""
    result = ctx.execute([nvcc, "--version"])
    words = result.stdout.replace("\n", " ").split(" ") if result.return_code == 0 else []
    versions = [word[1:] for word in words if word.startswith("V") and word[1:2].isdigit()]
    return versions[0] if versions else None

def _is_old(version):
    """Whether a version such as '12.2.140' is below _OLDEST. Only its first two numbers count."""
    return [int(part) for part in version.split(".")[:2]] < _OLDEST

def _defined_number(text, name):
    """The number that a header's text defines `name` as, or 0."""
    for line in text.split("\n"):
        words = [word for word in line.strip().split(" ") if word]
        if words[:2] == ["#define", name] and len(words) > 2 and words[2].isdigit():
            return int(words[2])
    return 0

def _runtime_version(ctx, include):
    """'13.0' of the runtime's headers, which may be of another version than nvcc where both come as wheels; or None."""
    header = include + "/cuda_runtime_api.h"
    number = _defined_number(ctx.read(header), "CUDART_VERSION") if ctx.path(header).exists else 0
    return "%d.%d" % (number // 1000, number % 1000 // 10) if number else None

def _compile_error(ctx, nvcc):
    """Why a kernel does not compile, or None. Folders with a part of a toolkit are common: PyTorch's wheels, for one."""
    ctx.file("probe.cu", "#include <cuda_bf16.h>\n__global__ void probe(__nv_bfloat16* x) { *x = 1.0f; }\n")
    host = ["-ccbin", ctx.os.environ["CC"]] if ctx.os.environ.get("CC") else []
    result = ctx.execute([nvcc, "-std=c++20", "-c", "probe.cu", "-o", "probe.o"] + host)
    return None if result.return_code == 0 else (result.stderr + result.stdout).strip().split("\n")[0][:300]

def _inspect(ctx, root):
    """The toolkit in the folder `root`: a struct whose `missing` says why the folder is not a toolkit."""
    missing = []
    nvcc = "%s/bin/nvcc" % root
    version = None
    if not ctx.path(nvcc).exists:
        if root.endswith(_CUDA_12_WHEEL):
            return struct(missing = ["no bin/nvcc: the nvidia-*-cu12 wheels have none, those of CUDA 13 do"])
        missing.append("no bin/nvcc")
    else:
        version = _nvcc_version(ctx, nvcc)
        if version == None:
            missing.append("bin/nvcc --version fails")
        elif _is_old(version):
            missing.append("nvcc %s is older than %s" % (version, _OLDEST_TEXT))
    include = _first_folder_with(ctx, root, _INCLUDE_FOLDERS, "cuda_runtime.h")
    if include == None:
        missing.append("no include/cuda_runtime.h")
    else:
        runtime = _runtime_version(ctx, include)
        if runtime == None:
            missing.append("no CUDART_VERSION in include/cuda_runtime_api.h")
        elif _is_old(runtime) and not missing:
            missing.append("include/cuda_runtime_api.h is of CUDA %s, older than %s" % (runtime, _OLDEST_TEXT))
        if not ctx.path(include + "/nvtx3/nvToolsExt.h").exists:
            missing.append("no include/nvtx3/nvToolsExt.h")
    library = _first_folder_with(ctx, root, _LIBRARY_FOLDERS, "libcudart_static.a")
    if library == None:
        missing.append("no lib64/libcudart_static.a")
    error = _compile_error(ctx, nvcc) if not missing else None
    if error:
        missing.append("bin/nvcc does not compile a small kernel (%s)" % error)
    return struct(root = root, nvcc = nvcc, version = version, include = include, library = library, missing = missing)

def _wheel_folders(ctx):
    folder = ctx.path(ctx.os.environ.get("VIRTUAL_ENV", "/") + "/lib")
    if "VIRTUAL_ENV" not in ctx.os.environ or not folder.exists:
        return []
    pythons = [str(python) for python in folder.readdir() if python.basename.startswith("python")]
    return [python + "/site-packages" + folder for folder in [_CUDA_13_WHEELS, _CUDA_12_WHEEL] for python in pythons]

def _candidates(ctx):
    """Folders to look at when no variable names one."""
    nvcc = ctx.which("nvcc")

    # nvcc may be a link into the toolkit.
    folders = [str(path.dirname.dirname) for path in [nvcc, nvcc.realpath]] if nvcc else []
    folders += ctx.attr.folders + _wheel_folders(ctx)
    once = {folder: None for folder in folders}.keys()
    return [folder for folder in once if ctx.path(folder).exists]

def _find_toolkit(ctx):
    """The toolkit and `None`, or `None` and why there is no toolkit."""
    for variable in _VARIABLES:
        root = ctx.os.environ.get(variable, "")
        if root:
            toolkit = _inspect(ctx, root.rstrip("/"))
            if toolkit.missing:
                fail(("\n\n{variable}={root} is not a CUDA toolkit: {missing}.\nThe folder must hold {pieces}.\n" +
                      "Correct {variable}, unset it to search elsewhere, or set MANTISSA_CUDA=off to build for the CPU " +
                      "only.\n").format(
                    variable = variable,
                    root = root,
                    missing = ", ".join(toolkit.missing),
                    pieces = _PIECES,
                ))
            return toolkit, None
    incomplete = []
    for root in _candidates(ctx):
        toolkit = _inspect(ctx, root)
        if not toolkit.missing:
            return toolkit, None
        incomplete.append("; not usable: %s (%s)" % (root, ", ".join(toolkit.missing)))
    message = "no CUDA toolkit of %s or newer in $CUDA_HOME, $CUDA_PATH, next to an nvcc on PATH, in %s%s. To get one: %s." % (
        _OLDEST_TEXT,
        ", ".join(ctx.attr.folders + ["or the wheels of $VIRTUAL_ENV"]),
        "".join(incomplete),
        _HOW,
    )
    if ctx.os.environ.get("MANTISSA_CUDA") == "on":
        fail("\n\nMANTISSA_CUDA=on, but there is %s\n" % message)
    return None, message

# Libraries whose headers are optional; the last header has the version. cuDNN 9.8 is the first to list what another device supports.
_LIBRARIES = {
    "NCCL": struct(
        headers = ["nccl.h"],
        oldest = [0, 0],
        wanted = "nccl.h",
        advice = "install the headers of NCCL, set NCCL_HOME if they lie elsewhere",
    ),
    "cuDNN": struct(
        headers = ["cudnn_graph.h", "cudnn_version.h"],
        oldest = [9, 8],
        wanted = "cudnn_graph.h of cuDNN 9.8 or newer",
        advice = "set CUDNN_HOME if it lies elsewhere",
    ),
}

def _headers_folder(ctx, toolkit, name, library):
    """The folder of a library's headers, in its oldest version or newer; or None."""
    variable = name.upper() + "_HOME"
    home = ctx.os.environ.get(variable, "")

    # Wheels keep a library beside the toolkit, Debian packages in the system's folders.
    folders = [home + "/include"] if home else []
    folders += [toolkit.include, "%s/../%s/include" % (toolkit.root, name.lower()), "/usr/include", "/usr/include/x86_64-linux-gnu"]
    for folder in folders:
        if all([ctx.path("%s/%s" % (folder, header)).exists for header in library.headers]):
            text = ctx.read("%s/%s" % (folder, library.headers[-1]))
            if [_defined_number(text, "%s_%s" % (name.upper(), part)) for part in ["MAJOR", "MINOR"]] >= library.oldest:
                return folder
    if home:
        fail("\n\n%s=%s holds no include/%s\n" % (variable, home, library.wanted))
    return None

def _missing_target(name, message):
    return """
genrule(
    name = "{name}_missing",
    outs = ["{name}_missing.h"],
    cmd = "echo '@cuda//:{name}: {message}' >&2; exit 1",
    tags = ["manual"],
)

cc_library(
    name = "{name}",
    hdrs = ["{name}_missing.h"],
    tags = ["manual"],
    visibility = ["//visibility:public"],
)
""".format(name = name, message = message)

# cub, thrust and libcu++ are templates for device code, over a thousand files; nvcc finds them by itself, the host compiler
# needs none.
_TOOLKIT_BUILD = """
cc_library(
    name = "headers",
    hdrs = glob(
        [folder + "/**" for folder in {folders}],
        # nccl.h has a target of its own, because it may come from another folder.
        # So have those of cuDNN.
        exclude = ["include/nccl*", "include/nccl*/**", "include/cudnn*"] +
                  ["include/cccl/" + part + "/**" for part in ["cub", "cuda", "thrust"]],
        allow_empty = True,
    ),
    includes = {folders},
)
"""

def _library(name, attributes):
    return """
cc_library(
    name = "%s",
    visibility = ["//visibility:public"],
    deps = [":headers"],
    %s
)
""" % (name, attributes)

def _linked_headers(ctx, library, folder, headers):
    """Links the headers of a library into a folder named after it. Returns the target of these headers."""
    for header in headers:
        ctx.symlink("%s/%s" % (folder, header), "%s/%s" % (library, header))
    hdrs = ["%s/%s" % (library, header) for header in headers]
    return _library(library + "_headers", "hdrs = %r, includes = [%r]," % (hdrs, library))

def _write(ctx, build, toolkit, left_out):
    ctx.file("BUILD", build)
    ctx.file("left_out", "".join(["%s: %s\n" % (name, left_out[name]) for name in left_out]))
    ctx.file("defs.bzl", "CUDA_AVAILABLE = %r\nCUDNN_AVAILABLE = %r\nNCCL_AVAILABLE = %r\nCUDA_VERSION = %r\nNVCC = %r\n" % (
        toolkit != None,
        "cuDNN" not in left_out,
        "NCCL" not in left_out,
        toolkit.version if toolkit else "",
        toolkit.nvcc if toolkit else "",
    ))

def _cuda_toolkit_impl(ctx):
    choice = ctx.os.environ.get("MANTISSA_CUDA", "")
    if choice not in ["", "on", "off"]:
        fail("\n\nMANTISSA_CUDA must be 'on', 'off' or unset, got '%s'\n" % choice)
    toolkit, reason = _find_toolkit(ctx) if choice != "off" else (None, "MANTISSA_CUDA=off")
    if toolkit == None:
        print("building for the CPU only: " + reason)
        short = "this is a build for the CPU only (MANTISSA_CUDA=off, or no CUDA toolkit)"
        names = ["cudart", "nvtx", "cublaslt_headers", "nccl_headers", "cudnn_headers"]
        build = "".join([_missing_target(name, short) for name in names])
        without = "needs CUDA's headers"
        _write(ctx, build, None, {"CUDA": reason, "NCCL": without, "cuDNN": without})
        return

    folders = []
    if toolkit.include != "/usr/include":  # the compiler searches it anyway
        folders = ["include", "include/cccl"] if ctx.path(toolkit.include + "/cccl").exists else ["include"]
        ctx.symlink(toolkit.include, "include")
    ctx.symlink(toolkit.library + "/libcudart_static.a", "libcudart_static.a")
    build = _TOOLKIT_BUILD.format(folders = repr(folders))
    build += _library("cudart", 'srcs = ["libcudart_static.a"], linkopts = ["-ldl", "-lrt", "-lpthread"],')
    build += _library("nvtx", 'linkopts = ["-ldl"],')
    if ctx.path(toolkit.include + "/cublasLt.h").exists:
        build += _library("cublaslt_headers", "")
    else:
        build += _missing_target("cublaslt_headers", "no cublasLt.h in %s; install the headers of cuBLAS" % toolkit.include)
    left_out = {}
    for name, library in _LIBRARIES.items():
        folder = _headers_folder(ctx, toolkit, name, library)
        if folder:
            build += _linked_headers(ctx, name.lower(), folder, library.headers)
        else:
            left_out[name] = "no %s; %s" % (library.wanted, library.advice)
            build += _missing_target(name.lower() + "_headers", left_out[name])
    _write(ctx, build, toolkit, left_out)

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    attrs = {
        "folders": attr.string_list(
            default = ["/usr/local/cuda", "/opt/cuda"],
            doc = "Where to look for a toolkit when nothing names one.",
        ),
    },
    configure = True,
    environ = _VARIABLES + ["CC", "MANTISSA_CUDA", "CUDNN_HOME", "NCCL_HOME", "PATH", "VIRTUAL_ENV"],
    local = True,
)
