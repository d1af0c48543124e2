// Two sets of parameters with an optimizer each, as loops of one's own use them.
#include "comm/data_parallel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/local/local_communicator.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

constexpr double kRate = 1e-2;
const DataParallelOptions kPlain{.adamw = {.weight_decay = 0.0f, .seed = 11}, .wire = DType::kF32};

// A rank with two sets of toy parameters, all in fp32.
struct TwoSets {
  explicit TwoSets(Communicator& ranks)
      : communicator(ranks), backend(create_backend("cpu")), stream(backend->create_stream()) {
    testing::add_toy_parameters(a, DType::kF32);
    testing::add_toy_parameters(b, DType::kF32);
    of_a = std::make_unique<DataParallel>(a, ranks, *backend, *stream, kPlain);
    of_b = std::make_unique<DataParallel>(b, ranks, *backend, *stream, kPlain);
    loss = backend->make_tensor(DType::kF32, {1}, "loss");
  }

  // Stands in for a backward pass over both sets, in which their gradients become complete in turns.
  void write_gradients(float value_of_a, float value_of_b) {
    of_a->begin();
    of_b->begin();
    for (int i = a.size() - 1; i >= 0; --i) {
      for (auto* const set : {&a, &b}) {
        Parameter& parameter = (*set)[i];
        backend->fill(parameter.gradient, set == &a ? value_of_a : value_of_b, *stream);
        parameter.gradient_written = true;
        of_a->ready(parameter);
        of_b->ready(parameter);
      }
    }
  }
  void set_loss(float value) { backend->upload(&value, loss, *stream); }
  std::vector<float> weights(const ParameterSet& set) const {
    std::vector<float> all;
    for (int i = 0; i < set.size(); ++i) {
      const auto* const values = set[i].weight.data<float>();
      all.insert(all.end(), values, values + set[i].numel());
    }
    return all;
  }

  Communicator& communicator;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Stream> stream;
  ParameterSet a, b;
  std::unique_ptr<DataParallel> of_a, of_b;
  Tensor loss;
};

TEST(DataParallel, NormIsThatOfTheUnscaledSumOfAllRanksAndSets) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](Communicator& communicator) {
      TwoSets sets(communicator);
      sets.set_loss(2.0f);
      // The sum over ranks is 4 and 8 in each element, whatever the number of ranks: 12 / 3 is exact.
      sets.write_gradients(12.0f / static_cast<float>(3 * ranks), 24.0f / static_cast<float>(3 * ranks));
      const Gradients found = join(sets.of_a->unscale(0.5f, sets.loss), sets.of_b->unscale(0.5f, sets.loss));
      EXPECT_EQ(found.outcome, StepOutcome::kClean);
      EXPECT_EQ(found.loss_sum, 2.0 * ranks);
      // sqrt(n (2^2 + 4^2)); thirds of 4 and 8 round by at most 2^-24 each.
      const double expected = std::sqrt(20.0 * static_cast<double>(sets.a.numel()));
      EXPECT_NEAR(found.norm, expected, expected * 0x1p-22);
    });
  }
}

// Adam's first update is lr * g / (|g| + epsilon), which does not depend on the size of g: the sign of each weight's
// change shows which gradients it has followed.
TEST(DataParallel, EachSetStepsByItsOwnGradientsAndRate) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [](Communicator& communicator) {
      TwoSets sets(communicator);
      const std::vector<float> a = sets.weights(sets.a), b = sets.weights(sets.b);
      EXPECT_EQ(a, b);  // the initial values depend on the names alone
      sets.set_loss(1.0f);
      sets.write_gradients(1.0f, -1.0f);
      sets.of_a->unscale(1.0f, sets.loss);
      sets.of_b->unscale(1.0f, sets.loss);
      sets.of_a->step(kRate);
      sets.of_b->step(2 * kRate);
      sets.stream->synchronize();
      communicator.barrier();
      const std::vector<float> new_a = sets.weights(sets.a), new_b = sets.weights(sets.b);
      for (size_t i = 0; i < a.size(); ++i) {
        // Weights are below 4: their sum with an update of 0.02 is rounded by at most 2^-22.
        ASSERT_NEAR(new_a[i] - a[i], -kRate, 1e-6) << i;
        ASSERT_NEAR(new_b[i] - b[i], 2 * kRate, 1e-6) << i;
      }
      communicator.barrier();
    });
  }
}

TEST(DataParallel, AnOverflowOfOneRankIsSeenByAllAndTheNextStepGoesOn) {
  run_ranks(2, [](Communicator& communicator) {
    TwoSets sets(communicator);
    const std::vector<float> before = sets.weights(sets.a);
    sets.set_loss(1.0f);
    sets.write_gradients(1.0f, communicator.rank() == 1 ? std::numeric_limits<float>::infinity() : 1.0f);
    const Gradients clean = sets.of_a->unscale(1.0f, sets.loss), overflow = sets.of_b->unscale(1.0f, sets.loss);
    EXPECT_EQ(clean.outcome, StepOutcome::kClean);
    EXPECT_EQ(overflow.outcome, StepOutcome::kGradientOverflow);
    EXPECT_EQ(join(clean, overflow).outcome, StepOutcome::kGradientOverflow);
    EXPECT_EQ(sets.weights(sets.a), before);

    sets.write_gradients(1.0f, 1.0f);
    EXPECT_EQ(join(sets.of_a->unscale(1.0f, sets.loss), sets.of_b->unscale(1.0f, sets.loss)).outcome,
              StepOutcome::kClean);
    sets.of_b->step(kRate);
    sets.stream->synchronize();
    communicator.barrier();
    EXPECT_NE(sets.weights(sets.b), before);
    communicator.barrier();
  });
}

TEST(DataParallel, ALossThatIsNotFiniteIsTheOutcome) {
  run_ranks(2, [](Communicator& communicator) {
    TwoSets sets(communicator);
    sets.set_loss(communicator.rank() == 0 ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
    sets.write_gradients(1.0f, 1.0f);
    EXPECT_EQ(sets.of_a->unscale(1.0f, sets.loss).outcome, StepOutcome::kLossFault);
    EXPECT_EQ(sets.of_b->unscale(1.0f, sets.loss).outcome, StepOutcome::kLossFault);
  });
}

}  // namespace
}  // namespace mantissa
