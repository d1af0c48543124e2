// The order in which the gradients of lanes are added: a binary tree. Its functions run on the device, too (constexpr:
// nvcc compiles them for both sides). A lane is a virtual worker. Neither lanes nor their tree depend on the ranks.
//
//   node [a, b) = node [a, m) + node [m, b),   m = a + the largest power of two below b - a
//
// Every aligned block of 2^k lanes is a node, whatever the number of lanes. A rank adds its lanes up into the largest
// nodes within them. A group of ranks does the same with the nodes of its ranks, and so on: the additions are the same
// for every grouping. Recursive halving adds in this order, too, and so do the carries of a binary counter.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mantissa {

inline constexpr int kMaxLaneLevels = 16;
inline constexpr int64_t kMaxLanes = int64_t{1} << kMaxLaneLevels;

// Rank r of R owns the lanes from lane_begin(r) to lane_begin(r + 1). Lanes and ranks are at most kMaxLanes.
constexpr int64_t lane_begin(int64_t rank, int64_t ranks, int64_t lanes) { return rank * lanes / ranks; }

// Lanes [begin, begin + 2^level); begin is a multiple of 2^level.
struct LaneNode {
  int64_t begin = 0;
  int level = 0;

  constexpr int64_t end() const { return begin + (int64_t{1} << level); }
};

// The level of the largest node at the begin of lanes [begin, end), begin < end. Nodes at the begin of the rest, one
// after the other, tile the lanes.
constexpr int level_at(int64_t begin, int64_t end) {
  int level = 0;
  while ((begin >> level & 1) == 0 && begin + (int64_t{2} << level) <= end) ++level;
  return level;
}

// The number of nodes in this tiling.
constexpr int64_t count_nodes(int64_t begin, int64_t end) {
  int64_t count = 0;
  for (; begin < end; begin = LaneNode{begin, level_at(begin, end)}.end()) ++count;
  return count;
}

// The members of a sum: member j has the nodes of the lanes of `span` ranks from first + j * span on.
// lanes = 0: member j is lane j, and there are no others.
struct LaneGroup {
  int64_t lanes = 0, ranks = 0, first = 0, span = 1;

  constexpr int64_t begin_of(int64_t member) const {
    return lanes == 0 ? member : lane_begin(first + member * span, ranks, lanes);
  }
  // Whether the members have all lanes.
  constexpr bool whole(int64_t members) const { return lanes == 0 || (begin_of(0) == 0 && begin_of(members) == lanes); }
  // The most nodes of a member.
  constexpr int64_t slots(int64_t members) const {
    int64_t most = 0;
    for (int64_t member = 0; member < members; ++member) {
      most = std::max(most, count_nodes(begin_of(member), begin_of(member + 1)));
    }
    return most;
  }
  // The nodes that the sum leaves: the tiling of all members' lanes together, or the root of the tree.
  constexpr int64_t nodes(int64_t members) const {
    return whole(members) ? 1 : count_nodes(begin_of(0), begin_of(members));
  }
  // N, from the S * N rows of a sum. 0: no number of members of this group has so many.
  constexpr int64_t members_of(int64_t rows) const {
    if (lanes == 0) return rows;
    for (int64_t count = 1; count <= 2 * kMaxLaneLevels && ranks > 0 && span > 0; ++count) {
      const int64_t members = rows / count;
      if (rows % count == 0 && first + members * span <= ranks && slots(members) == count) return members;
    }
    return 0;
  }
};

// A step of a sum takes a node of a member. First, kept sums are added to it, from the lowest level of `merged` on:
// sum = kept + sum. Then the sum is kept, or is a node of the result.
struct LaneStep {
  int64_t member = 0, slot = 0;
  LaneNode node{};
  uint32_t merged = 0;  // bit l: adds the sum that is kept at level l
  int kept = 0;         // the level at which the sum is kept; kResult: it is the next node of the result

  static constexpr int kResult = -1;
};

// The steps of a sum, in order of lanes. A level keeps at most one sum at any time. A plain record, moved on by next();
// over() does the divisions, on the host.
struct LaneWalk {
  int64_t members;
  int64_t begin, end;                  // lanes of all members
  int64_t ranks, quotient, remainder;  // a member has quotient + remainder / ranks lanes, less or more a fraction
  int64_t lane, member_end, fraction;  // next lane; end of the member's lanes, rounded down by fraction / ranks
  int64_t member, slot;
  bool whole;

  static constexpr LaneWalk over(const LaneGroup& group, int64_t members) {
    const LaneGroup g = group.lanes == 0 ? LaneGroup{.lanes = members, .ranks = members} : group;
    LaneWalk walk{.members = members,
                  .begin = g.begin_of(0),
                  .end = g.begin_of(members),
                  .ranks = g.ranks,
                  .quotient = g.span * g.lanes / g.ranks,
                  .remainder = g.span * g.lanes % g.ranks,
                  .lane = g.begin_of(0),
                  .member_end = g.begin_of(0),
                  .fraction = g.first * g.lanes % g.ranks,
                  .member = 0,
                  .slot = 0,
                  .whole = g.whole(members)};
    walk.end_member();
    return walk;
  }

  // False after the last step.
  constexpr bool next(LaneStep& step) {
    while (lane >= member_end) {
      if (++member >= members) return false;
      slot = 0;
      end_member();
    }
    step = {.member = member, .slot = slot++, .node = {.begin = lane, .level = level_at(lane, member_end)}};
    lane = step.node.end();
    if (whole && lane >= end) {  // the last node: all kept ones are on the right spine of the tree
      step.merged = static_cast<uint32_t>(step.node.begin);
      step.kept = LaneStep::kResult;
    } else {
      carry(step);
    }
    return true;
  }

 private:
  constexpr void end_member() {
    member_end += quotient;
    fraction += remainder;
    if (fraction < ranks) return;
    fraction -= ranks;
    ++member_end;
  }

  // As in a binary counter: a right node completes its parent, if the group has the left one.
  constexpr void carry(LaneStep& step) const {
    auto [node, level] = step.node;
    for (; (node >> level & 1) != 0; ++level) {
      const int64_t left = node - (int64_t{1} << level);
      step.kept = LaneStep::kResult;
      if (left < begin) return;
      step.merged |= uint32_t{1} << level;
      node = left;
    }
    step.kept = whole || node + (int64_t{2} << level) <= end ? level : LaneStep::kResult;
  }
};

}  // namespace mantissa
