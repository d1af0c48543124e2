// Backend: the memory and the kernels of one device. It runs each kernel of core/kernels/kernel_list.h as run(args,
// stream); core/kernels/<family>/args.h defines the argument structs. The stream orders calls. Operands must stay alive
// until the stream has passed them.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>

#include "core/kernels/fp8_gemm_support.h"
#include "core/kernels/gemm/operand_cache.h"
#include "core/kernels/kernel_list.h"
#include "core/tensor/device_options.h"
#include "core/tensor/stream.h"
#include "core/tensor/tensor.h"

namespace mantissa {

// Memory that a process holds.
struct MemoryUse {
  size_t held_bytes = 0;
  size_t peak_bytes = 0;  // the most at once, so far
};

struct TensorStats;

// A device runs each kernel of a list: run(args, stream). A single virtual function serves all of them: a function for
// each kernel costs seconds of compile time in every file that instantiates the class. ForwardsAllKernels implements
// it.
template <typename List>
class RunsKernels;

template <typename... Args>
class RunsKernels<KernelList<Args...>> {
 public:
  virtual ~RunsKernels() = default;

  // Queues the kernel of these arguments on the stream.
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

// The device interface by purpose, for code that needs only a part of it.
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

  // The device that tensors of allocate() are on.
  virtual Device device() const = 0;
  // False for a dry run: kernels and copies do nothing, and memory must not be read.
  virtual bool computes() const { return true; }
  // One line for the log: device, instruction set or architecture, threads, library versions.
  virtual std::string describe() const = 0;
  virtual std::unique_ptr<Stream> create_stream() = 0;
  // Matrix multiplication options for streams that are created later. Devices without a choice ignore them.
  virtual void set_gemm_options(const GemmOptions&) {}
  // Attention kernels for streams that are created later. Devices without a choice ignore it.
  virtual void set_attention_choice(AttentionChoice) {}
  // The products of 8-bit codes that the device runs natively with the current GemmOptions. Queried before operands are
  // rounded.
  virtual Fp8GemmSupport fp8_gemm_support() const { return Fp8GemmSupport::kNone; }
  // The library that runs them, or why no library does, for the log: "cuBLASLt 13.1.0, compute capability 9.0".
  virtual std::string describe_fp8_gemm_support() const { return "this device has no FP8 units"; }
  // A cache for a matrix that several products read as GemmArgs::b. nullptr on a device that would not benefit.
  virtual std::unique_ptr<OperandCache> make_operand_cache() { return nullptr; }
  // Records the work that `body` queues on `stream`, and on streams joined by events, instead of running it. The memory
  // that the work uses must stay allocated. `body` must not allocate, upload or wait. Throws ConfigError if the device
  // does not support capture.
  virtual std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& body);

  // Zeroed memory, 64-byte aligned, freed with its last tensor. The error names `what` if there is no memory.
  virtual std::shared_ptr<Storage> allocate(size_t bytes, const char* what) = 0;
  // Memory for an Arena, uninitialised. A CPU reserves address space, whose pages are allocated on first touch. A GPU
  // allocates all of it at once.
  virtual std::shared_ptr<Storage> reserve(size_t bytes) = 0;
  // Host memory that the device copies from and to directly (pinned, for a GPU), in tensors of Device::Kind::kCpu.
  virtual std::shared_ptr<Storage> allocate_staging(size_t bytes, const char* what) = 0;
  // The device memory that this process holds. CPU: the whole process, as the operating system counts it. GPU: all
  // allocations of this backend, without those of the driver and the libraries.
  virtual MemoryUse memory_use() const = 0;
  // Copies within the device, or between it and staging memory; equal dtype and numel. Staging memory must not change
  // until the stream has passed the copy.
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
  // The number in a tensor (1) of fp32 or fp64 (blocks).
  double read_number(const Tensor& tensor, Stream& stream);
};

// Implements every run() of a Backend by one member function template of the device or decorator,
//   template <typename Args> void call(const Args& args, Stream& stream);
// Overloads may handle single kernels. A device that lacks a kernel does not compile.
template <typename Device, typename Base = Backend>
class ForwardsAllKernels : public Base {
 public:
  using Base::Base;
  using Base::run;

 private:
  void run_kernel(ComputeKernels list, int64_t index, const void* args, Stream& stream) override {
    calls(list)[index](static_cast<Device&>(*this), args, stream);
  }
  void run_kernel(OptimizerKernels list, int64_t index, const void* args, Stream& stream) override {
    calls(list)[index](static_cast<Device&>(*this), args, stream);
  }
  void run_kernel(ReductionKernels list, int64_t index, const void* args, Stream& stream) override {
    calls(list)[index](static_cast<Device&>(*this), args, stream);
  }
  void run_kernel(ProbeKernels list, int64_t index, const void* args, Stream& stream) override {
    calls(list)[index](static_cast<Device&>(*this), args, stream);
  }

  using DeviceCall = void (*)(Device&, const void*, Stream&);
  // call() of each kernel of the list.
  template <typename... Args>
  static const DeviceCall* calls(KernelList<Args...>) {
    static constexpr DeviceCall kCalls[] = {
        [](Device& device, const void* args, Stream& s) { device.call(*static_cast<const Args*>(args), s); }...};
    return kCalls;
  }
};

}  // namespace mantissa
