// Backend: the memory and the kernels of one device. It runs each kernel of core/kernels/kernel_list.h as run(args,
// stream); core/kernels/<family>/args.h defines the argument structs. The stream orders calls. Operands must stay alive
// until the stream has passed them.
#pragma once

#include <algorithm>
#include <iterator>
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

// The position of Args among the kernels of a list; their number if it is none of them.
template <typename Args, typename... All>
constexpr int64_t kernel_index(KernelList<All...>) {
  constexpr bool kIsKernel[] = {std::is_same_v<Args, All>...};
  return std::find(std::begin(kIsKernel), std::end(kIsKernel), true) - std::begin(kIsKernel);
}

class Backend {
 public:
  virtual ~Backend() = default;

  // Queues the kernel of these arguments on the stream. A single virtual function serves all kernels: a function for
  // each costs seconds of compile time in every file that instantiates the class. ForwardsAllKernels implements it.
  template <typename Args>
  requires(kernel_index<Args>(Kernels()) < kKernels) void run(const Args& args, Stream& stream) {
    run_kernel(kernel_index<Args>(Kernels()), &args, stream);
  }

  virtual Device device() const = 0;  // the device that tensors of allocate() are on
  // False for a dry run: kernels and copies do nothing, and memory must not be read.
  virtual bool computes() const { return true; }
  // One line for the log: device, instruction set or architecture, threads, library versions.
  virtual std::string describe() const = 0;
  virtual std::unique_ptr<Stream> create_stream() = 0;
  // Matrix multiplication options for streams that are created later. Devices without a choice ignore them.
  virtual void set_gemm_options(const GemmOptions&) {}
  // Attention kernels for streams that are created later. Devices without a choice ignore it.
  virtual void set_attention_choice(AttentionChoice) {}
  // The products of 8-bit codes that the device runs natively with the current GemmOptions. Asked before rounding.
  virtual Fp8GemmSupport fp8_gemm_support() const { return Fp8GemmSupport::kNone; }
  // The library that runs them, or why no library does, for the log: "cuBLASLt 13.1.0, compute capability 9.0".
  virtual std::string describe_fp8_gemm_support() const { return "this device has no FP8 units"; }
  // A cache for a matrix that several products read as GemmArgs::b. nullptr on a device that would not benefit.
  virtual std::unique_ptr<OperandCache> make_operand_cache() { return nullptr; }
  // Records the work that `body` queues on `stream`, and on streams joined by events, instead of running it. The memory
  // that the work uses must stay allocated. `body` must not allocate, upload or wait. ConfigError if the device cannot.
  virtual std::unique_ptr<CapturedWork> capture(Stream& stream, const std::function<void()>& body);

  // Zeroed memory, 64-byte aligned, freed with its last tensor. The error names `what` if there is no memory.
  virtual std::shared_ptr<Storage> allocate(size_t bytes, const char* what) = 0;
  // Memory for an Arena, uninitialised. A CPU allocates its pages on first touch, a GPU all of it at once.
  virtual std::shared_ptr<Storage> reserve(size_t bytes) = 0;
  // Host memory that the device copies from and to directly (pinned, for a GPU), in tensors of Device::Kind::kCpu.
  virtual std::shared_ptr<Storage> allocate_staging(size_t bytes, const char* what) = 0;
  // The device memory that this process holds. CPU: the whole process, as the operating system counts it. GPU: all
  // allocations of this backend, without those of the driver and the libraries.
  virtual MemoryUse memory_use() const = 0;
  // Copies within the device, or from or to staging memory, unchanged until the stream passes; equal dtype and numel.
  virtual void copy(const Tensor& src, const Tensor& dst, Stream& stream) = 0;
  // dst.size_bytes() bytes from host memory, which may be reused when the call returns.
  virtual void upload(const void* host, const Tensor& dst, Stream& stream) = 0;
  // src.size_bytes() bytes to host memory; blocks until they are there.
  virtual void download(const Tensor& src, void* host, Stream& stream) = 0;
  void fill(const Tensor& dst, float value, Stream& stream);  // runs the kernel FillArgs

  // Allocates a zeroed tensor that lives outside of any arena.
  Tensor make_tensor(DType dtype, Shape shape, const char* what);
  // A plain record on the device, u8, zeroed.
  template <typename Record>
  Tensor make_record(const char* what) {
    return make_tensor(DType::kU8, Shape{static_cast<int64_t>(sizeof(Record))}, what);
  }
  // A record of TensorStatsArgs on the device: an empty one, and its value on the host (blocks).
  Tensor make_stats(Stream& stream);
  TensorStats read_stats(const Tensor& record, Stream& stream);
  double read_number(const Tensor& tensor, Stream& stream);  // the number in a tensor (1) of fp32 or fp64 (blocks)

 private:
  // `args` points to the struct at position `index` of Kernels.
  virtual void run_kernel(int64_t index, const void* args, Stream& stream) = 0;
};

// Implements every run() of a Backend by one member function template of the device or decorator,
//   template <typename Args> void call(const Args& args, Stream& stream);
// Overloads may handle single kernels. A device that lacks a kernel does not compile.
template <typename Device, typename Base = Backend>
class ForwardsAllKernels : public Base {
 public:
  using Base::Base;

 private:
  void run_kernel(int64_t index, const void* args, Stream& stream) override {
    calls(Kernels())[index](static_cast<Device&>(*this), args, stream);
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
