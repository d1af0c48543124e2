// Tape::recompute: a segment is one node. Its backward function records the segment's own nodes in its place, and the
// backward pass continues with them. Gradients, use counts and hooks are the same as without recomputation.
#include <utility>

#include "core/autograd/tape.h"

namespace mantissa {

// During its lifetime, ops run without being recorded. The parameters that they use are appended to `parameters`.
class Tape::DroppedRun {
 public:
  DroppedRun(Tape& tape, std::vector<Parameter*>& parameters) : tape_(tape) { tape_.dropped_parameters_ = &parameters; }
  ~DroppedRun() { tape_.dropped_parameters_ = nullptr; }
  DroppedRun(const DroppedRun&) = delete;
  DroppedRun& operator=(const DroppedRun&) = delete;

 private:
  Tape& tape_;
};

// During its lifetime, the tape is at the position where the segment began.
class Tape::SecondRun {
 public:
  SecondRun(Tape& tape, const Position& begin) : tape_(tape), here_(tape.position()) {
    tape_.go_to(begin);
    tape_.is_second_run_ = true;
    tape_.searched_.clear();  // each layer is in one segment, so its op numbers start again
  }
  ~SecondRun() {
    tape_.is_second_run_ = false;
    tape_.go_to(here_);
  }
  SecondRun(const SecondRun&) = delete;
  SecondRun& operator=(const SecondRun&) = delete;

 private:
  Tape& tape_;
  const Position here_;
};

void Tape::go_to(const Position& position) {
  layer_ = position.layer;
  precision_ = &policy_.at(layer_);
  random_sites_ = position.random_sites;
  autocast_state() = position.autocast;
}

Var Tape::recompute(Var input, Segment segment) {
  if (!recomputes() || !is_recording()) return segment(*this, std::move(input));
  const Position begin = position();
  std::vector<Parameter*> parameters;
  Tensor output;
  {
    const DroppedRun run(*this, parameters);
    output = segment(*this, Var{input.value}).value;
  }
  Var made = push_node(std::move(output), {input}, parameters,
                       [begin, input, segment = std::move(segment)](Tape& tape, Tensor d_out) {
                         const SecondRun run(tape, begin);
                         const Var again = segment(tape, input);
                         MANTISSA_CHECK(again.slot >= 0 && again.slot != input.slot,
                                        "[tape.recompute] a segment must return a value that its own ops made");
                         tape.slots_[static_cast<size_t>(again.slot)].gradient = std::move(d_out);
                       });
  if (options_.check_gradients) {  // ops that read the output identify it by the op that made it
    last_dropped_.slot = made.slot;
    search_.remember(last_dropped_, made.value);
  }
  return made;
}

Var Tape::remakeable(Var y, Remake remake) const {
  if (y.slot >= 0 && options_.recompute == Recompute::kSelective) {
    y.remake = std::make_shared<const Remake>(std::move(remake));
  }
  return y;
}

}  // namespace mantissa
