#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "tools/lab/compare/comparison_report.h"
#include "tools/lab/compare/precision_summary.h"

namespace mantissa {
namespace {

constexpr double kMib = 1024.0 * 1024.0;

using Row = std::vector<std::string>;

// Columns as wide as their widest entry; the first to the left, the others to the right.
std::string table(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      const bool is_first = column == 0;
      line += is_first ? fmt::format("  {:<{}}", row[column], widths[column])
                       : fmt::format("  {:>{}}", row[column], widths[column]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string interval_text(const MeanDifference& found, const char* format) {
  std::string text = fmt::format(fmt::runtime(format), found.mean);
  if (!found.interval) return text;
  return text + " (" + fmt::format(fmt::runtime(format), found.interval->low) + " to " +
         fmt::format(fmt::runtime(format), found.interval->high) + ")";
}

std::string why(const PrecisionSummary& found) {
  if (found.succeeded < found.runs) {
    return fmt::format("{} of {} runs failed: {}", found.runs - found.succeeded, found.runs, found.failure);
  }
  return found.runs < 2 ? "one run each says nothing of chance: give more --seeds" : "";
}

// Loss scales are powers of two as a rule.
std::string scale_text(float scale) {
  int exponent = 0;
  const bool is_power = std::frexp(scale, &exponent) == 0.5f;
  return is_power && scale >= 1024.0f ? fmt::format("2^{}", exponent - 1) : fmt::format("{:g}", scale);
}

// On the first line of a reason, which may have several.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string verdict_text(const PrecisionComparison& comparison) {
  const PrecisionRuns& baseline = comparison.precisions[comparison.baseline];
  std::string text = fmt::format(
      "\nverdict: final loss against {} with the same seed, nats a token, {:g} % interval; equal within {:.2g}, {}\n",
      baseline.name, 100.0 * comparison.options.level, margin_of(comparison),
      comparison.options.margin ? "as given"
      : margin_of(comparison) > 0.0
          ? fmt::format("what seeds change ({}'s standard deviation)", baseline.name)
          : fmt::format("since {}'s runs are fewer than two, or not all got below their first loss", baseline.name));
  std::vector<Row> rows;
  for (size_t index = 0; index < comparison.precisions.size(); ++index) {
    const PrecisionRuns& precision = comparison.precisions[index];
    if (!precision.refusal.empty()) {
      rows.push_back({precision.name, "not trained"});
      continue;
    }
    const PrecisionSummary found = summary_of(comparison, index);
    if (index == comparison.baseline) {
      rows.push_back({precision.name, "baseline"});
    } else {
      rows.push_back({precision.name, std::string(name(found.verdict)),
                      found.loss_difference ? interval_text(*found.loss_difference, "{:+.4f}") : "-"});
    }
  }
  text += table(rows);
  for (size_t index = 0; index < comparison.precisions.size(); ++index) {
    const PrecisionRuns& precision = comparison.precisions[index];
    const std::string reason = precision.refusal.empty() ? why(summary_of(comparison, index)) : precision.refusal;
    if (!reason.empty()) text += fmt::format("  {}: {}\n", precision.name, first_line(reason));
  }
  return text;
}

Row figures(const std::string& name, const PrecisionSummary& found) {
  const auto known = [](const auto& value, auto&& text) { return value ? text(*value) : std::string("-"); };
  const auto share = [](double value) { return fmt::format("{:.3g} %", 100.0 * value); };
  const auto times = [](const Spread& ratio) {
    return fmt::format("{:.3f} ({:.3f} - {:.3f})", ratio.mean, ratio.low, ratio.high);
  };
  return {name,
          fmt::format("{}/{}", found.succeeded, found.runs),
          share(found.overflow_share + found.fault_share),
          known(found.step_seconds, [](const Spread& seconds) { return fmt::format("{:.2f}", 1e3 * seconds.mean); }),
          known(found.time_ratio, times),
          known(found.tokens_per_second, [](double rate) { return fmt::format("{:.0f}", rate); }),
          known(found.loss, [](const MeanDifference& loss) { return interval_text(loss, "{:.4f}"); }),
          known(found.grad_norm, [](double norm) { return fmt::format("{:.3g}", norm); }),
          found.last_scale ? fmt::format("{} / {} / {:.3g}", scale_text(*found.smallest_scale),
                                         scale_text(*found.last_scale), found.scale_changes)
                           : "-",
          known(found.peak_memory_bytes, [](double bytes) { return fmt::format("{:.1f}", bytes / kMib); }) +
              (found.memory_ratio ? fmt::format(" ({:+.0f} %)", 100.0 * (*found.memory_ratio - 1.0)) : ""),
          fmt::format("{:.2f}", found.sent_bytes / kMib)};
}

}  // namespace

std::string to_text(const PrecisionComparison& comparison) {
  std::string text = fmt::format("{}: {} precisions, {} seeds, {} steps, {} rank{}, {}\n", comparison.options.title,
                                 comparison.precisions.size(), comparison.seeds.size(), comparison.steps,
                                 comparison.ranks, comparison.ranks == 1 ? "" : "s", comparison.device);
  text += verdict_text(comparison);
  std::vector<Row> rows = {{"precision", "success", "skipped", "step ms", "times baseline", "tokens/s", "final loss",
                            "grad norm", "scale min/last/changes", "peak MiB", "sent MiB"}};
  for (size_t index = 0; index < comparison.precisions.size(); ++index) {
    const PrecisionRuns& precision = comparison.precisions[index];
    rows.push_back(precision.refusal.empty() ? figures(precision.name, summary_of(comparison, index))
                                             : Row{precision.name, "refused"});
  }
  return text + "\n" + table(rows) +
         "skipped: steps with overflow or a fault; times baseline: mean and range over seeds; peak and sent: of a "
         "rank, "
         "a step\n";
}

}  // namespace mantissa
