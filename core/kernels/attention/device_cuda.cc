#include "core/kernels/attention/device_cuda.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/log.h"
#include "core/cuda/runtime/runtime.h"
#include "core/kernels/attention/trial_cuda.h"

namespace mantissa::cuda {
namespace {

// The largest workspace with kAuto: the size of fp32 results (it grows with T, not with T * T) or a negligible size.
size_t auto_workspace_limit(const AttentionKey& key) {
  constexpr size_t kSmallBytes = size_t{16} << 20;
  const int64_t results = key.shape.batch * key.shape.sequence_length * key.shape.num_heads * key.shape.head_dim;
  return std::max(kSmallBytes, static_cast<size_t>(results) * sizeof(float));
}

// The backward pass with kCudnn.
AttentionPass backward_pass(const CudaStream& stream) {
  return stream.gemm_options().selection == GemmSelection::kDeterministic ? AttentionPass::kReproducibleBackward
                                                                          : AttentionPass::kBackward;
}

std::string describe(const AttentionKey& key) {
  const char* pass = key.pass == AttentionPass::kForward    ? "forward pass"
                     : key.pass == AttentionPass::kBackward ? "backward pass"
                                                            : "reproducible backward pass";
  return fmt::format("{} of {} attention in {}, B={} T={} H={} KV={} D={}{}{}", pass,
                     key.shape.mask == Mask::kCausal ? "causal" : "unmasked", name(key.dtype), key.shape.batch,
                     key.shape.sequence_length, key.shape.num_heads, key.shape.num_kv_heads, key.shape.head_dim,
                     key.shape.window > 0 ? fmt::format(" window={}", key.shape.window) : "",
                     key.documents == Documents::kGiven ? " with documents" : "");
}

[[noreturn]] void reject(const AttentionKey& key, const std::string& reason) {
  throw ConfigError(
      fmt::format("[attention] cuda.attention: cudnn, but cuDNN does not compute the {}: {}; give "
                  "cuda.attention=auto or own",
                  describe(key), reason));
}

template <typename... Operands>
bool fits(const AttentionShape& shape, const Tensor& qkv, const Operands&... others) {
  constexpr int64_t kMaxHeadDim = 128;
  constexpr uintptr_t kChunkBytes = 16;
  const auto aligned = [](const Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.raw()) % kChunkBytes == 0;
  };
  return size_bytes(qkv.dtype()) == 2 && shape.head_dim <= kMaxHeadDim &&
         static_cast<uintptr_t>(shape.head_dim) * 2 % kChunkBytes == 0 && shape.scale > 0.0f && aligned(qkv) &&
         (aligned(others) && ...);
}

AttentionDevice& device_of(const CudaStream& stream) {
  // Never destroyed: when the program ends, the driver that a library uses may be gone first.
  static auto& devices = *new std::map<int, std::unique_ptr<AttentionDevice>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::unique_ptr<AttentionDevice>& device = devices[stream.device_index()];
  if (device == nullptr) {
    device =
        std::make_unique<AttentionDevice>([index = stream.device_index()] { return open_attention_engine(index); });
  }
  return *device;
}

}  // namespace

bool fits_tensor_cores(const AttentionForwardArgs& args) { return fits(args.shape, args.qkv, args.out); }
bool fits_tensor_cores(const AttentionBackwardArgs& args) {
  return fits(args.shape, args.qkv, args.out, args.d_out, args.d_qkv);
}

void own_attention_forward(const AttentionForwardArgs& args, CudaStream& stream) {
  (fits_tensor_cores(args) ? attention_forward_mma : attention_forward_simt)(args, stream);
}

void own_attention_backward(const AttentionBackwardArgs& args, CudaStream& stream) {
  const AttentionRowTerms terms = attention_row_terms(args, stream);
  (fits_tensor_cores(args) ? attention_backward_mma : attention_backward_simt)(args, terms, stream);
}

bool AttentionDevice::try_forward(const AttentionForwardArgs& args, CudaStream& stream) {
  return try_pass(AttentionPass::kForward, args, stream);
}

bool AttentionDevice::try_backward(const AttentionBackwardArgs& args, CudaStream& stream) {
  if (stream.attention_choice() != AttentionChoice::kCudnn) return false;
  return try_pass(backward_pass(stream), args, stream);
}

template <typename Args>
bool AttentionDevice::try_pass(AttentionPass pass, const Args& args, CudaStream& stream) {
  const AttentionChoice choice = stream.attention_choice();
  if (choice == AttentionChoice::kOwn) return false;
  const AttentionKey key{pass, args.qkv.dtype(), args.shape,
                         args.starts.defined() ? Documents::kGiven : Documents::kNone};
  // The library's plans need operands that fit tensor cores, and at least two positions.
  if (!fits_tensor_cores(args) || args.shape.sequence_length < 2) {
    if (choice == AttentionChoice::kAuto) return false;
    reject(key, "it needs two positions or more, and 16-byte aligned bf16 or fp16 with heads up to 128 wide");
  }
  const std::lock_guard lock(mutex_);
  const auto index = std::pair(choice, key);
  auto found = entries_.find(index);
  const bool decided = found != entries_.end() && (found->second.plan == nullptr || found->second.checked);
  if (!decided && is_capturing(stream.handle())) {
    if (choice == AttentionChoice::kAuto) return false;
    reject(key, "it was not run before a graph was captured");
  }
  if (found == entries_.end()) found = entries_.emplace(index, make_entry(choice, key)).first;
  Entry& entry = found->second;
  if (entry.plan == nullptr) return false;
  const size_t workspace_bytes = entry.plan->workspace_bytes();
  const auto queue = [&] {
    entry.plan->run(args, stream.workspace(workspace_bytes), stream);
    return true;
  };
  if (entry.checked) return queue();
  std::string reason;
  try {
    reason = rejection_reason(*entry.plan, pass, args, stream);
    stream.synchronize();  // the memory of the trial goes back to the device
  } catch (const OutOfDeviceMemory&) {
    reason = fmt::format("no device memory is left to compare it with our kernels, with {} MiB for its workspace",
                         workspace_bytes >> 20);
  } catch (const CudaError& error) {
    stream.synchronize();  // throws if the device has failed, not the library
    reason = error.what();
  }
  if (reason.empty()) {
    entry.checked = true;
    return queue();
  }
  entry.plan = nullptr;
  if (choice == AttentionChoice::kCudnn) {
    entries_.erase(found);
    reject(key, reason);
  }
  log_warn("[attention] cuDNN is not used for the {}: {}", describe(key), reason);
  return false;
}

AttentionDevice::Entry AttentionDevice::make_entry(AttentionChoice choice, const AttentionKey& key) {
  AttentionEngine* const library = engine(choice);
  if (library == nullptr) return {};
  std::string reason;
  try {
    if (key.shape.window > 0 || key.documents == Documents::kGiven) {
      throw ConfigError("cuDNN is used neither with a window nor with documents");
    }
    Entry entry{.plan = library->plan(key)};
    const size_t bytes = entry.plan->workspace_bytes();
    const size_t limit = choice == AttentionChoice::kAuto ? auto_workspace_limit(key) : bytes;
    if (bytes <= limit) return entry;
    reason = fmt::format("cuDNN wants {} MiB of workspace, more than {} MiB", bytes >> 20, limit >> 20);
  } catch (const Error& error) {
    reason = error.what();
  }
  if (choice == AttentionChoice::kCudnn) reject(key, reason);
  log_info("[attention] our kernels compute the {}: {}", describe(key), reason);
  return {};
}

AttentionEngine* AttentionDevice::engine(AttentionChoice choice) {
  if (open_) {
    try {
      engine_ = open_();
    } catch (const Error& error) {
      missing_ = error.what();
      if (choice == AttentionChoice::kAuto) log_info("[attention] our kernels compute it: {}", missing_);
    }
    open_ = nullptr;
  }
  if (engine_ == nullptr && choice == AttentionChoice::kCudnn) {
    throw ConfigError(
        fmt::format("[attention] cuda.attention: cudnn, but {}; give cuda.attention=auto or own", missing_));
  }
  return engine_.get();
}

std::unique_ptr<AttentionEngine> open_attention_engine(int index) {
  if (open_cudnn_attention != nullptr) return open_cudnn_attention(index);
  throw ConfigError(
      "this program has no cuDNN support: it was built without cuDNN's headers (9.8 or newer), or for the emulated "
      "GPU");
}

void run(const AttentionForwardArgs& args, CudaStream& stream) {
  check_args(args);
  if (!device_of(stream).try_forward(args, stream)) own_attention_forward(args, stream);
}

void run(const AttentionBackwardArgs& args, CudaStream& stream) {
  check_args(args);
  if (!device_of(stream).try_backward(args, stream)) own_attention_backward(args, stream);
}

}  // namespace mantissa::cuda
