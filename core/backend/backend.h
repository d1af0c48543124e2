// Backend: the memory and the kernels of one device. The kernels are those of core/kernels/kernel_list.h, each as
// run(args, stream); the argument structs stand in core/kernels/<family>/args.h. Calls are ordered by the stream;
// operands must stay alive until the stream has passed them.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>

#include "core/kernels/device_options.h"
#include "core/kernels/fp8_gemm_support.h"
#include "core/kernels/gemm/operand_cache.h"
#include "core/kernels/kernel_list.h"
#include "core/kernels/reduction/args.h"
#include "core/tensor/stream.h"
#include "core/tensor/tensor.h"

namespace mantissa {

struct MemoryUse {
  size_t held_bytes = 0;
  size_t peak_bytes = 0;  // the most at once, so far
};

struct TensorStats;

// A device runs each kernel of a list: run(args, stream). One virtual function serves them all, because a class with
// one for each kernel takes the compiler seconds in every file that makes one. core/backend/kernel_forward.h implements
// it.
template <typename List>
class RunsKernels;

template <typename... Args>
class RunsKernels<KernelList<Args...>> {
 public:
  virtual ~RunsKernels() = default;

  template <typename Kernel>
  requires(std::is_same_v<Kernel, Args> || ...) void run(const Kernel& args, Stream& stream) {
    constexpr bool kIsKernel[] = {std::is_same_v<Kernel, Args>...};
    run_kernel(KernelList<Args...>(), std::find(std::begin(kIsKernel), std::end(kIsKernel), true) - kIsKernel, &args,
               stream);
  }

 private:
  // `args` points to the struct at position `index` of the list.
  virtual void run_kernel(KernelList<Args...> list, int64_t index, const void* args, Stream& stream) = 0;
};

// The device interface by purpose, for code that needs one part of it only.
using ComputeDevice = RunsKernels<ComputeKernels>;
using OptimizerDevice = RunsKernels<OptimizerKernels>;
using ReductionDevice = RunsKernels<ReductionKernels>;
using ProbeDevice = RunsKernels<ProbeKernels>;

class Backend : public ComputeDevice, public OptimizerDevice, public ReductionDevice, public ProbeDevice {
 public:
  using ComputeDevice::run;
  using OptimizerDevice::run;
  using ProbeDevice::run;
  using ReductionDevice::run;

  virtual Device device() const = 0;
  // False for a dry run: kernels and copies do nothing, and memory must not be read.
  virtual bool computes() const { return true; }
  // One line for the log: device, instruction set or architecture, threads, library versions.
  virtual std::string describe() const = 0;
  virtual std::unique_ptr<Stream> create_stream() = 0;
  // How the streams that are made from now on multiply matrices. A device without such a choice ignores it.
  virtual void set_gemm_options(const GemmOptions&) {}
  // Who computes attention on the streams that are made from now on. Likewise.
  virtual void set_attention_choice(AttentionChoice) {}
  // Which products of 8-bit operands gemm() takes as codes, under the present GemmOptions; asked before operands are
  // rounded.
  virtual Fp8GemmSupport fp8_gemm_support() const { return Fp8GemmSupport::kNone; }
  // Whose they are, or why there are none, for the log: "cuBLASLt 13.1.0, compute capability 9.0".
  virtual std::string describe_fp8_gemm_support() const { return "this device has no units for them"; }
  // For a matrix that several products will read as GemmArgs::b. nullptr on a device that would gain nothing by it.
  virtual std::unique_ptr<OperandCache> make_operand_cache() { return nullptr; }
  // Records what `body` queues on `stream`, and on streams that it joins to it by events, instead of running it. The
  // memory that it names must stay. Nothing may be allocated, uploaded or waited for in it. ConfigError if the device
  // cannot.
  virtual std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& body);

  // Zeroed memory, 64-byte aligned, that lives until its last tensor goes. `what` is named when memory runs out.
  virtual std::shared_ptr<Storage> allocate(size_t bytes, const char* what) = 0;
  // Memory for an Arena, uninitialised. A CPU gives address space, of which pages are taken as they are touched; a GPU
  // gives all of it at once.
  virtual std::shared_ptr<Storage> reserve(size_t bytes) = 0;
  // Host memory that the device copies from and to directly (pinned, for a GPU), in tensors of Device::Kind::kCpu.
  virtual std::shared_ptr<Storage> allocate_staging(size_t bytes, const char* what) = 0;
  // What this process holds of the device's memory. A CPU's: the whole process, as the operating system counts. A
  // GPU's: all that this backend took, without what the driver and the libraries keep for themselves.
  virtual MemoryUse memory_use() const = 0;
  // Copies within the device, or between it and staging memory; equal dtype and numel. Staging memory must stay as it
  // is until the stream has passed the copy.
  virtual void copy(const Tensor& src, const Tensor& dst, Stream& stream) = 0;
  // dst.size_bytes() bytes from host memory, which may be reused when the call returns.
  virtual void upload(const void* host, const Tensor& dst, Stream& stream) = 0;
  // src.size_bytes() bytes to host memory; blocks until they are there.
  virtual void download(const Tensor& src, void* host, Stream& stream) = 0;
  // Runs the kernel FillArgs.
  void fill(const Tensor& dst, float value, Stream& stream);

  // Allocates a zeroed tensor that lives outside of any arena.
  Tensor make_tensor(DType dtype, Shape shape, const char* what);
  // A plain record on the device, u8, zeroed.
  template <typename Record>
  Tensor make_record(const char* what) {
    return make_tensor(DType::kU8, Shape{static_cast<int64_t>(sizeof(Record))}, what);
  }
  // A record for tensor_stats() on the device: an empty one, and its value on the host (blocks).
  Tensor make_stats(Stream& stream);
  TensorStats read_stats(const Tensor& record, Stream& stream);
};

}  // namespace mantissa
