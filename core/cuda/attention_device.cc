#include "core/cuda/attention_device.h"

#include <fmt/format.h>

#include "core/base/log.h"
#include "core/cuda/attention_comparison.h"
#include "core/cuda/attention_own.h"
#include "core/cuda/runtime.h"

namespace mantissa::cuda {
namespace {

// With kAuto no plan may hold more of the device than this for good.
constexpr size_t kAutoWorkspaceBytes = size_t{1} << 30;

// Device memory in the form of a tensor, for the time of a comparison.
Tensor scratch_like(const Tensor& tensor) {
  auto* const data = static_cast<std::byte*>(allocate_device(tensor.size_bytes()));
  return {std::make_shared<Storage>(data, tensor.size_bytes(), tensor.device(), [data] { free_device(data); }),
          tensor.dtype(), tensor.shape()};
}

void copy_to(const Tensor& to, const Tensor& from, CudaStream& stream) {
  copy_async(to.raw(), from.raw(), to.size_bytes(), CopyKind::kDeviceToDevice, stream.handle());
  stream.synchronize();  // `from` goes
}

enum class Verdict { kAgrees, kUndecided, kRefused };

struct Check {
  Verdict verdict;
  std::string reason{};  // of a refusal
};

// From the differences of a result that must stay below `bound`.
Check judge(const char* what, const Difference& difference, double bound) {
  if (!difference.finite) return {Verdict::kUndecided};
  if (difference.error <= bound) return {Verdict::kAgrees};
  return {Verdict::kRefused, fmt::format("its {} is {:.3g} from that of our kernels, where rounding explains {:.3g}",
                                         what, difference.error, bound)};
}

void run(AttentionPlan& plan, const AttentionForwardArgs& args, CudaStream& stream) { plan.forward(args, stream); }
void run(AttentionPlan& plan, const AttentionBackwardArgs& args, CudaStream& stream) { plan.backward(args, stream); }

// Each leaves a right result: the plan's if it agrees, else that of our kernels.
Check check(AttentionPlan& plan, AttentionPass, const AttentionForwardArgs& args, const AttentionExtents& extents,
            CudaStream& stream) {
  own_attention_forward(args, extents, stream);
  AttentionForwardArgs other = args;
  other.out = scratch_like(args.out);
  other.lse = scratch_like(args.lse);
  plan.forward(other, stream);
  Check found = judge("lse", largest_difference(other.lse, args.lse, stream), kLseErrorBound);
  if (found.verdict != Verdict::kAgrees) return found;
  found =
      judge("out",
            relative_difference(other.out, args.out, {extents.out_row(), extents.out_row(), extents.out_row()}, stream),
            attention_error_bound(args.out.dtype()));
  if (found.verdict != Verdict::kAgrees) return found;
  copy_to(args.out, other.out, stream);
  copy_to(args.lse, other.lse, stream);
  return found;
}

Check check(AttentionPlan& plan, AttentionPass pass, const AttentionBackwardArgs& args, const AttentionExtents& extents,
            CudaStream& stream) {
  own_attention_backward(args, extents, stream);
  AttentionBackwardArgs other = args, again = args;
  other.d_qkv = scratch_like(args.d_qkv);
  plan.backward(other, stream);
  const int64_t queries = extents.out_row(), keys = queries + extents.num_kv_heads * extents.head_dim;
  Check found =
      judge("gradient", relative_difference(other.d_qkv, args.d_qkv, {queries, keys, extents.qkv_row()}, stream),
            attention_error_bound(args.d_qkv.dtype()));
  if (found.verdict != Verdict::kAgrees) return found;
  if (pass == AttentionPass::kReproducibleBackward) {
    again.d_qkv = scratch_like(args.d_qkv);
    plan.backward(again, stream);
    if (!same_bits(again.d_qkv, other.d_qkv, stream)) return {Verdict::kRefused, "two runs of it give different bits"};
  }
  copy_to(args.d_qkv, other.d_qkv, stream);
  return found;
}

AttentionKey key_of(AttentionPass pass, const AttentionExtents& extents, DType dtype) {
  return {.pass = pass,
          .dtype = dtype,
          .batch = extents.batch,
          .sequence_length = extents.sequence_length,
          .num_heads = extents.num_heads,
          .num_kv_heads = extents.num_kv_heads,
          .head_dim = extents.head_dim,
          .mask = extents.mask};
}

AttentionPass backward_pass(const CudaStream& stream) {
  const bool any_order = stream.attention_choice() == AttentionChoice::kCudnn &&
                         stream.gemm_options().selection != GemmSelection::kDeterministic;
  return any_order ? AttentionPass::kBackward : AttentionPass::kReproducibleBackward;
}

std::string describe(const AttentionKey& key) {
  const char* pass = key.pass == AttentionPass::kForward    ? "forward pass"
                     : key.pass == AttentionPass::kBackward ? "backward pass"
                                                            : "reproducible backward pass";
  return fmt::format("{} of {} attention in {}, B={} T={} H={} KV={} D={}", pass,
                     key.mask == Mask::kCausal ? "causal" : "unmasked", name(key.dtype), key.batch, key.sequence_length,
                     key.num_heads, key.num_kv_heads, key.head_dim);
}

[[noreturn]] void refuse(const AttentionKey& key, const std::string& reason) {
  throw ConfigError(
      fmt::format("[attention] cuda.attention: cudnn, but cuDNN does not compute the {}: {}; give "
                  "cuda.attention=auto or own",
                  describe(key), reason));
}

}  // namespace

bool AttentionDevice::try_forward(const AttentionForwardArgs& args, const AttentionExtents& extents,
                                  CudaStream& stream) {
  return try_pass(AttentionPass::kForward, args, extents, stream);
}

bool AttentionDevice::try_backward(const AttentionBackwardArgs& args, const AttentionExtents& extents,
                                   CudaStream& stream) {
  return try_pass(backward_pass(stream), args, extents, stream);
}

template <typename Args>
bool AttentionDevice::try_pass(AttentionPass pass, const Args& args, const AttentionExtents& extents,
                               CudaStream& stream) {
  const AttentionChoice choice = stream.attention_choice();
  if (choice == AttentionChoice::kOwn) return false;
  const AttentionKey key = key_of(pass, extents, args.qkv.dtype());
  // What tensor cores take is also what the library's plans are made for, but for single positions.
  if (!fits_tensor_cores(args, extents) || extents.sequence_length < 2) {
    if (choice == AttentionChoice::kAuto) return false;
    refuse(key, "it needs two positions or more, and 16-byte aligned bf16 or fp16 with heads up to 128 wide");
  }
  const std::lock_guard lock(mutex_);
  const auto index = std::pair(choice, key);
  auto found = entries_.find(index);
  const bool decided = found != entries_.end() && (found->second.plan == nullptr || found->second.checked);
  if (!decided && is_capturing(stream.handle())) {
    if (choice == AttentionChoice::kAuto) return false;
    refuse(key, "it was not run before a graph was captured");
  }
  if (found == entries_.end()) found = entries_.emplace(index, make_entry(choice, key)).first;
  Entry& entry = found->second;
  if (entry.plan == nullptr) return false;
  if (entry.checked) {
    run(*entry.plan, args, stream);
    return true;
  }
  Check result;
  try {
    result = check(*entry.plan, pass, args, extents, stream);
  } catch (const OutOfDeviceMemory&) {
    result = {Verdict::kRefused, "no device memory is left to compare it with our kernels"};
  } catch (const CudaError& error) {
    result = {Verdict::kRefused, error.what()};
  }
  entry.checked = result.verdict == Verdict::kAgrees;
  if (result.verdict != Verdict::kRefused) return true;
  entry.plan = nullptr;
  if (choice == AttentionChoice::kCudnn) {
    entries_.erase(found);
    refuse(key, result.reason);
  }
  spdlog::warn("[attention] cuDNN is not used for the {}: {}", describe(key), result.reason);
  return false;
}

AttentionDevice::Entry AttentionDevice::make_entry(AttentionChoice choice, const AttentionKey& key) {
  AttentionEngine* const library = engine(choice);
  if (library == nullptr) return {};
  std::string reason;
  try {
    Entry entry{.plan = library->plan(key)};
    const size_t bytes = entry.plan->workspace_bytes();
    if (choice != AttentionChoice::kAuto || bytes <= kAutoWorkspaceBytes) return entry;
    reason = fmt::format("it wants {} MiB of workspace", bytes >> 20);
  } catch (const Error& error) {
    reason = error.what();
  }
  if (choice == AttentionChoice::kCudnn) refuse(key, reason);
  spdlog::info("[attention] our kernels compute the {}: {}", describe(key), reason);
  return {};
}

AttentionEngine* AttentionDevice::engine(AttentionChoice choice) {
  if (open_) {
    try {
      engine_ = open_();
    } catch (const Error& error) {
      missing_ = error.what();
      if (choice == AttentionChoice::kAuto) spdlog::info("[attention] our kernels compute it: {}", missing_);
    }
    open_ = nullptr;
  }
  if (engine_ == nullptr && choice == AttentionChoice::kCudnn) {
    throw ConfigError(
        fmt::format("[attention] cuda.attention: cudnn, but {}; give cuda.attention=auto or own", missing_));
  }
  return engine_.get();
}

}  // namespace mantissa::cuda
