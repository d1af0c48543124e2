// TrainingPoint: a training as it was at one point, which it can be put back to after something has been tried.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "tools/train/session.h"

namespace mantissa {

class TrainingPoint {
 public:
  // Copies this rank's weights and moments, on the device. Of a session in in_exact_precision(), which must outlive the
  // object. Collective.
  explicit TrainingPoint(Session& session);

  // Weights, masters and moments become those of the point. Collective.
  void restore();

  // Elements [begin, begin + out.size()) of a parameter's direction.
  using Direction = std::function<void(int parameter, int64_t begin, std::span<float> out)>;
  // The working weights, and nothing else, become those of the point plus the direction's elements. Every rank must
  // give the same. Collective.
  void displace(const Direction& direction);

 private:
  struct Kept {
    Tensor live, copy;
  };
  // Working weights as this rank writes them: its shard of those that ranks have in common, else all.
  struct Written {
    Kept weights;
    std::vector<Segment> segments;
  };

  Kept keep(const Tensor& live);
  void put_back(const Kept& kept);
  // Nobody reads the weights any more, or all have written theirs.
  void meet();

  Session& session_;
  std::vector<Kept> state_;
  std::vector<Written> weights_;
};

}  // namespace mantissa
