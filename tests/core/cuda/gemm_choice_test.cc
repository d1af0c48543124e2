// How an algorithm of cuBLASLt is chosen and remembered.
#include <gtest/gtest.h>

#include <fstream>

#include "core/cuda/emulation/stream_queue.h"
#include "core/kernels/gemm/choice_cublaslt.h"
#include "core/kernels/gemm/problem_cublaslt.h"
#include "tests/core/cuda/gemm_products.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {
namespace {

using GemmChoice = GemmProducts;

TEST_F(GemmChoice, TheFastestIsTakenAndKept) {
  const std::string path = folder_.file("choices.txt");
  {
    state().duration_ms = {6, 1, 3};
    GemmDevice device(library_, path);
    expect_right(device, {});
    EXPECT_EQ(state().last_algorithm(), 1);
    const int products = state().products;
    expect_right(device, {});
    EXPECT_EQ(state().last_algorithm(), 1);
    EXPECT_EQ(state().products, products + 1);
    EXPECT_EQ(state().heuristic_calls, 1);
  }
  state() = {.duration_ms = {1, 6, 3}};  // must have no effect now
  GemmDevice later(library_, path);
  expect_right(later, {});
  EXPECT_EQ(state().ran, std::vector<int>{1});
  EXPECT_EQ(state().heuristic_calls, 0);
}

TEST_F(GemmChoice, UnsteadyTimesDecideNothing) {
  const std::string path = folder_.file("choices.txt");
  {
    state().duration_ms = {60, 10, 30};
    state().scatter = 0.2;
    GemmDevice device(library_, path);
    expect_right(device, {});
    EXPECT_EQ(state().last_algorithm(), 0) << "the library's first choice";
  }
  state() = {.duration_ms = {60, 10, 30}};
  GemmDevice later(library_, path);
  expect_right(later, {});
  EXPECT_EQ(state().ran, std::vector<int>{0}) << "later runs use the first run's choice";
}

TEST_F(GemmChoice, NothingElseRunsWhenTimesAreMeasured) {
  CudaStream other(std::make_shared<DeviceMemory>(0), device_properties(0));
  constexpr int kPieces = 40;
  int ran = 0;
  for (int i = 0; i < kPieces; ++i) emulation::enqueue(other.handle(), [&ran] { ++ran; });
  int ran_before_first = -1;
  state().before_product = [&] {
    if (ran_before_first < 0) ran_before_first = ran;
  };
  GemmDevice device(library_, "");
  expect_right(device, {});
  EXPECT_EQ(ran_before_first, kPieces);
  state().before_product = nullptr;
}

TEST_F(GemmChoice, AccumulatingWhileTimingAddsOnce) {
  state().duration_ms = {3, 1};
  GemmDevice device(library_, "");
  expect_right(device, {.mode = GradientMode::kAccumulate});
  EXPECT_EQ(state().last_algorithm(), 1);
  EXPECT_GT(state().products, 2);
}

TEST_F(GemmChoice, DeterministicSelectionMeasuresNothing) {
  const std::string path = folder_.file("choices.txt");
  state().duration_ms = {6, 1};
  GemmDevice device(library_, path);
  stream_.set_gemm_options({.selection = GemmSelection::kDeterministic});
  expect_right(device, {});
  EXPECT_EQ(state().ran, std::vector<int>{0});
  EXPECT_FALSE(std::ifstream(path).good());
  // The two selections do not share their choices.
  stream_.set_gemm_options({});
  expect_right(device, {});
  EXPECT_EQ(state().last_algorithm(), 1);
  stream_.set_gemm_options({.selection = GemmSelection::kDeterministic});
  expect_right(device, {});
  EXPECT_EQ(state().last_algorithm(), 0);
}

TEST_F(GemmChoice, AnAlgorithmThatDoesNotRunIsOutOfTheChoice) {
  state().duration_ms = {0, 1, 4};
  state().refused = {0};
  GemmDevice device(library_, "");
  expect_right(device, {});
  EXPECT_EQ(state().last_algorithm(), 1);
}

TEST_F(GemmChoice, AKeptChoiceThatTheLibraryRefusesIsReplaced) {
  const std::string path = folder_.file("choices.txt");
  state().duration_ms = {6, 1};
  expect_right(*std::make_unique<GemmDevice>(library_, path), {});
  state() = {.duration_ms = {1, 6}, .refused = {1}};
  expect_right(*std::make_unique<GemmDevice>(library_, path), {});
  EXPECT_EQ(state().last_algorithm(), 0);
  state() = {.duration_ms = {6, 1}};
  expect_right(*std::make_unique<GemmDevice>(library_, path), {});
  EXPECT_EQ(state().ran, std::vector<int>{0});
}

TEST_F(GemmChoice, NothingIsTimedInACapturedGraph) {
  state().duration_ms = {6, 1};
  GemmDevice device(library_, "");
  const Tensor a = make_tensor(DType::kF32, {2, 2}, {1, 2, 3, 4}), b = make_tensor(DType::kF32, {2, 2}, {1, 0, 0, 1});
  const Tensor c = make_tensor(DType::kF32, {2, 2}, {NAN, NAN, NAN, NAN});
  stream_.gemm_workspace();  // in place of an earlier product on the stream
  begin_capture(stream_.handle());
  multiply(device, {.a = a, .b = b, .c = c}, stream_);
  const GraphHandle graph = end_capture(stream_.handle());
  EXPECT_EQ(state().ran, std::vector<int>{0});
  launch_graph(graph, stream_.handle());
  EXPECT_EQ(values_of(c, stream_), (std::vector<double>{1, 2, 3, 4}));
  destroy_graph(graph);
}

TEST_F(GemmChoice, ACapturedProductReadsItsScalesWhenItRuns) {
  GemmDevice device(library_, "");
  const Tensor a = make_tensor(DType::kF32, {2, 2}, {1, 2, 3, 4}), b = make_tensor(DType::kF32, {2, 2}, {1, 0, 0, 1});
  const Tensor c = make_tensor(DType::kF32, {2, 2}, {10, 20, 30, 40});
  const Tensor a_scale = make_tensor(DType::kF32, {1}, {1}), b_scale = make_tensor(DType::kF32, {1}, {0.5});
  const GemmArgs args{
      .a = a, .b = b, .c = c, .a_scale = a_scale, .b_scale = b_scale, .mode = GradientMode::kAccumulate};
  multiply(device, args, stream_);  // allocates memory, which a capture cannot do
  EXPECT_EQ(values_of(c, stream_), (std::vector<double>{12, 24, 36, 48}));
  begin_capture(stream_.handle());
  multiply(device, args, stream_);
  const GraphHandle graph = end_capture(stream_.handle());
  *a_scale.data<float>() = 4.0f;
  launch_graph(graph, stream_.handle());
  EXPECT_EQ(values_of(c, stream_), (std::vector<double>{12.5, 25, 37.5, 50}));
  *b_scale.data<float>() = 0.25f;
  launch_graph(graph, stream_.handle());
  EXPECT_EQ(values_of(c, stream_), (std::vector<double>{13.5, 27, 40.5, 54}));
  destroy_graph(graph);
}

TEST(Steady, TimesATenthApart) {
  EXPECT_TRUE(is_steady({0.0f, 0.0f}));
  EXPECT_TRUE(is_steady({1.0f, 1.05f, 1.09f}));
  EXPECT_FALSE(is_steady({1.0f, 1.0f, 1.0f, 1.2f}));
  EXPECT_FALSE(is_steady({1.2f, 1.0f}));
}

TEST(ClearlyFastest, AnEarlierOneWinsUnlessItIsBeatenClearly) {
  EXPECT_EQ(clearly_fastest({1.0f}), 0u);
  EXPECT_EQ(clearly_fastest({1.0f, 0.99f, 0.985f}), 0u);
  EXPECT_EQ(clearly_fastest({1.0f, 0.97f, 0.96f}), 1u);
  EXPECT_EQ(clearly_fastest({1.0f, 1.5f, 0.5f, 0.4f}), 3u);
}

// ---- The real cuBLASLt without a GPU: opening it, its symbols, its descriptors.

TEST(CublasLtLibrary, OpensAndHasEverySymbol) {
  ASSERT_EQ(testing::error_of([] { cublaslt(); }), "");
  const CublasLt& library = cublaslt();
  EXPECT_EQ(library.version() / 10000, static_cast<size_t>(CUBLAS_VER_MAJOR));
  EXPECT_STREQ(library.status_name(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
  // Every member is a function address, so none is missing.
  const auto* addresses = reinterpret_cast<void* const*>(&library);
  for (size_t i = 0; i < sizeof(library) / sizeof(void*); ++i) EXPECT_NE(addresses[i], nullptr) << i;
}

// The library checks the size of each attribute.
TEST(CublasLtLibrary, TakesTheDescriptorsOfEveryKindOfProduct) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType c_dtype : {dtype, DType::kF32}) {
      for (const GemmEpilogue epilogue : {GemmEpilogue::kNone, GemmEpilogue::kBias, GemmEpilogue::kGeluAux,
                                          GemmEpilogue::kGeluAuxBias, GemmEpilogue::kGeluGradient}) {
        const GemmKey key{.m = 24,
                          .n = 16,
                          .k = 40,
                          .a_stride = 40,
                          .b_stride = 16,
                          .c_stride = 16,
                          .dtype = dtype,
                          .c_dtype = c_dtype,
                          .epilogue = epilogue};
        GemmDescriptors descriptors(cublaslt(), key);
        float value = 0;
        descriptors.set_addresses({.a = &value, .b = &value, .c = &value, .bias = &value, .aux = &value});
        EXPECT_NE(descriptors.operation(), nullptr);
        EXPECT_NE(descriptors.a(), nullptr);
        EXPECT_NE(descriptors.b(), nullptr);
        EXPECT_NE(descriptors.d(), nullptr);
      }
    }
  }
}

TEST(CublasLtLibrary, TakesTheDescriptorsOfProductsOfCodes) {
  for (const auto& [a, b] :
       {std::pair(Format::kE4M3, Format::kE4M3), {Format::kE5M2, Format::kE4M3}, {Format::kE4M3, Format::kE5M2}}) {
    for (const DType c_dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const GemmKey key{.m = 32,
                        .n = 16,
                        .k = 48,
                        .a_stride = 48,
                        .b_stride = 48,
                        .c_stride = 16,
                        .dtype = DType::kU8,
                        .c_dtype = c_dtype,
                        .a_format = a,
                        .b_format = b,
                        .trans_b = Transpose::kYes,
                        .epilogue = c_dtype == DType::kF32 ? GemmEpilogue::kNone : GemmEpilogue::kBias,
                        .scaled = true};
      GemmDescriptors descriptors(cublaslt(), key);
      float values[8] = {};
      descriptors.set_addresses({.a = values, .b = values, .c = values, .bias = values, .scalars = values});
      EXPECT_NE(descriptors.operation(), nullptr);
    }
  }
}

}  // namespace
}  // namespace mantissa::cuda
