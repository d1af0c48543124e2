// The list of all kernels. The device interface (core/backend/backend.h), the dry run, and the profiling and recording
// decorators are derived from it. A new kernel needs a line here, its argument struct in <family>/args.h, its checks in
// <family>/contract.cc, and run() for each device and for fp64 (core/kernels/fp64).
#pragma once

namespace mantissa {

template <typename... Args>
struct KernelList {};

// The structs are only declared here, so that an edit of a family's args.h recompiles only its users.
using Kernels = KernelList<          //
    struct FillArgs,                 // elementwise
    struct CastArgs,                 //
    struct SplitArgs,                //
    struct AddArgs,                  //
    struct DropoutArgs,              //
    struct GeluForwardArgs,          // activation
    struct GeluBackwardArgs,         //
    struct SwigluForwardArgs,        //
    struct SwigluBackwardArgs,       //
    struct ReluSquaredForwardArgs,   //
    struct ReluSquaredBackwardArgs,  //
    struct GemmArgs,                 // gemm
    struct LayerNormForwardArgs,     // norm
    struct LayerNormBackwardArgs,    //
    struct RmsNormForwardArgs,       //
    struct RmsNormBackwardArgs,      //
    struct AttentionForwardArgs,     // attention
    struct AttentionBackwardArgs,    //
    struct AttentionAppendArgs,      //
    struct AttentionDecodeArgs,      //
    struct EmbeddingForwardArgs,     // embedding
    struct EmbeddingBackwardArgs,    //
    struct RopeArgs,                 //
    struct CrossEntropyForwardArgs,  // loss
    struct CrossEntropyBackwardArgs,
    struct ColumnSumArgs,          // reduction
    struct AmaxArgs,               // quantize
    struct TensorScaleArgs,        //
    struct QuantizeArgs,           //
    struct FromCodesArgs,          //
    struct RoundContributionArgs,  //
    struct HadamardArgs,           //
    struct DelayedScalesArgs,      //
    struct AdamWArgs,              // optimizer
    struct SettleDigestsArgs,      //
    struct TensorStatsArgs,        // reduction
    struct SumContributionsArgs,   //
    struct RecordVerdictArgs,      //
    struct FoldVerdictsArgs,       //
    struct DecideUpdateArgs,       //
    struct DigestArgs,             //
    struct ExponentHistogramArgs,  // probe
    struct UpdateStagnationArgs,   //
    struct RoundingLossesArgs,     //
    struct CompareArgs             //
    >;

// Their number.
inline constexpr int64_t kKernels = []<typename... Args>(KernelList<Args...>) { return sizeof...(Args); }(Kernels());

}  // namespace mantissa
