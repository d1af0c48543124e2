#include "tools/lab/advise/plan/plan_exchange.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mantissa {
namespace {

// Of one decision to another option, or of none.
struct Change {
  size_t decision = 0;
  int option = 0;
  double saved = 0.0;
  std::vector<double> needed{};  // of each limit
};

class Exchange {
 public:
  Exchange(Plan plan, const OptionValues& costs, const std::vector<SumLimit>& limits)
      : plan_(std::move(plan)), costs_(costs), limits_(limits) {}

  Plan run() {
    for (size_t i = 0; i < plan_.size(); ++i) least_ += 1e-12 * std::abs(costs_[i][static_cast<size_t>(plan_[i])]);
    measure_room();
    if (std::any_of(room_.begin(), room_.end(), [](double room) { return room < 0.0; })) return plan_;
    while (improve()) measure_room();
    return plan_;
  }

 private:
  void measure_room() {
    room_.clear();
    for (const SumLimit& one : limits_) room_.push_back(one.limit - sum_of(one.amounts, plan_));
  }

  std::vector<Change> changes() const {
    std::vector<Change> found;
    for (size_t i = 0; i < plan_.size(); ++i) {
      const auto now = static_cast<size_t>(plan_[i]);
      for (size_t option = 0; option < costs_[i].size(); ++option) {
        if (option == now) continue;
        Change change{.decision = i, .option = static_cast<int>(option), .saved = costs_[i][now] - costs_[i][option]};
        for (const SumLimit& one : limits_) change.needed.push_back(one.amounts[i][option] - one.amounts[i][now]);
        found.push_back(std::move(change));
      }
    }
    return found;
  }

  bool fit(const Change& a, const Change* b) const {
    for (size_t limit = 0; limit < room_.size(); ++limit) {
      if (a.needed[limit] + (b ? b->needed[limit] : 0.0) > room_[limit]) return false;
    }
    return true;
  }

  bool improve() {
    std::vector<Change> all = changes();
    // The first that fits is the best.
    std::stable_sort(all.begin(), all.end(), [](const Change& a, const Change& b) { return a.saved > b.saved; });
    for (const Change& one : all) {
      if (!(one.saved > least_)) break;
      if (!fit(one, nullptr)) continue;
      plan_[one.decision] = one.option;
      return true;
    }
    const Change *first = nullptr, *second = nullptr;
    double best = least_;
    for (size_t i = 0; i < all.size() && 2.0 * all[i].saved > best; ++i) {
      for (size_t j = i + 1; j < all.size() && all[i].saved + all[j].saved > best; ++j) {
        if (all[i].decision == all[j].decision || !fit(all[i], &all[j])) continue;
        best = all[i].saved + all[j].saved;
        first = &all[i];
        second = &all[j];
      }
    }
    if (!first) return false;
    plan_[first->decision] = first->option;
    plan_[second->decision] = second->option;
    return true;
  }

  Plan plan_;
  const OptionValues& costs_;
  const std::vector<SumLimit>& limits_;
  std::vector<double> room_;  // below each limit
  double least_ = 0.0;        // that is worth a change: less is the rounding of sums, and would go round in circles
};

}  // namespace

double sum_of(const OptionValues& values, const Plan& plan) {
  double sum = 0.0;
  for (size_t i = 0; i < plan.size(); ++i) sum += values[i][static_cast<size_t>(plan[i])];
  return sum;
}

Plan exchanged(Plan plan, const OptionValues& costs, const std::vector<SumLimit>& limits) {
  return Exchange(std::move(plan), costs, limits).run();
}

}  // namespace mantissa
