// Shared parts of the solvers that draw random plans.
#pragma once

#include <functional>
#include <limits>

#include "core/tensor/philox.h"
#include "tools/lab/advise/search/solver.h"

namespace mantissa {

// Random numbers: the same for the same seed on every machine.
class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}

  uint32_t word() {
    if (drawn_ % 4 == 0)
      words_ = philox(seed_, {static_cast<uint32_t>(drawn_ / 4), static_cast<uint32_t>(drawn_ >> 34), 0, 0});
    return words_[drawn_++ % 4];
  }
  double uniform() { return word() * 0x1p-32; }  // [0, 1)
  // 0, ..., count - 1.
  int below(size_t count) { return static_cast<int>((uint64_t{word()} * static_cast<uint32_t>(count)) >> 32); }
  // An option by these probabilities, with the sum 1; never an impossible one.
  int option(const std::vector<double>& probabilities) {
    double left = uniform();
    size_t option = 0;
    while (option + 1 < probabilities.size() && (left -= probabilities[option]) >= 0.0) ++option;
    while (probabilities[option] == 0.0) --option;  // rounded sums may pass the last possible option
    return static_cast<int>(option);
  }

 private:
  uint64_t seed_ = 0, drawn_ = 0;
  PhiloxCounter words_{};
};

Plan random_plan(const PlanProblem& problem, Draws& draws);
// Decisions in random order take the option that needs least of the budget, until it is met or all decisions have.
void repair_budget(const PlanProblem& problem, const PlanGoal& goal, Plan& plan, Draws& draws);

struct ParzenSettings {
  uint64_t seed = 1;
  int evaluations = 400;  // calls of the objective
  int random_plans = 40;  // tried first; the first of them are the uniform ones
  // Changes a drawn plan into an allowed one, without calling the objective.
  std::function<void(Plan&, Draws&)> repair = [](Plan&, Draws&) {};
};
struct ParzenResult {
  Plan plan{};
  double value = std::numeric_limits<double>::infinity();
  int64_t evaluations = 0;  // fewer than requested if no new plan was drawn for long
};
// Minimizes an objective that may be a measurement, by the tree-structured Parzen estimator: Bergstra, Bardenet,
// Bengio, Kegl, "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011. Returns the best plan tried, of equals the
// first. NaN counts as worse than every number. No plan is evaluated twice.
ParzenResult parzen_search(const PlanProblem& problem, const std::function<double(const Plan&)>& objective,
                           const ParzenSettings& settings);

}  // namespace mantissa
