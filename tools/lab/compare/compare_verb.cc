#include "tools/lab/compare/precision_comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/check.h"
#include "core/base/log.h"
#include "tools/lab/advise/advice.h"
#include "tools/lab/analyze/analyze_verbs.h"
#include "tools/lab/analyze/model_analysis.h"
#include "tools/run/job/job.h"

namespace mantissa {
namespace {

constexpr int64_t kProbedSteps = 8;          // whose gradients are counted
constexpr int64_t kFormatSamples = 1 << 14;  // values tried for each size: the charts show no third digit
constexpr double kMib = 1024.0 * 1024.0;

// The first line of the reason why a precision was not trained, failed, or is inconclusive; and its outlier.
std::string remarks(const Json& precision) {
  std::string text, outlier;
  if (!precision.contains("summary")) {
    text = precision["refusal"];
  } else {
    const Json& summary = precision["summary"];
    const int64_t runs = summary["runs"], failed = runs - summary["succeeded"].get<int64_t>();
    text = failed > 0 ? fmt::format("{} of {} failed: {}", failed, counted(runs, "run"), summary["failure"])
                      : summary["why"].get<std::string>();
    outlier = outlier_of(summary);
  }
  text = text.substr(0, text.find('\n'));
  return text + (text.empty() || outlier.empty() ? "" : "; ") + outlier;
}

std::string scale_text(const Json& scale) {
  int exponent = 0;
  const double number = number_of(scale);
  const bool is_power = std::frexp(number, &exponent) == 0.5;
  return is_power && number >= 1024.0 ? fmt::format("2^{}", exponent - 1) : fmt::format("{:g}", scale);
}

void print_figures(const Json& figures, ReportText& text) {
  Json trained = Json::array();
  for (const Json& precision : figures["precisions"]) {
    if (!precision.contains("summary")) continue;
    Json row = precision["summary"];
    row["name"] = precision["name"];
    row["skipped_share"] = number_of(row["overflow_share"]) + number_of(row["fault_share"]);
    trained.push_back(std::move(row));
  }
  const auto success = [](const Json& row) { return fmt::format("{}/{}", row["succeeded"], row["runs"]); };
  const auto scales = [](const Json& row) {
    if (row["last_scale"].is_null()) return std::string("-");
    return fmt::format("{} / {} / {:.3g}", scale_text(row["smallest_scale"]), scale_text(row["last_scale"]),
                       row["scale_changes"]);
  };
  const auto memory = [](const Json& row) {
    const double ratio = number_of(row["memory_ratio"]);
    return in_format("{:.1f}", 1.0 / kMib)(row["peak_memory_bytes"]) +
           (std::isnan(ratio) ? "" : fmt::format(" ({:+.0f} %)", 100.0 * (ratio - 1.0)));
  };
  std::vector<Column> columns = {{"precision", "name"},
                                 {"success", "", success},
                                 {"skipped\nsteps", "skipped_share", in_format("{:.3g} %", 100.0)},
                                 {"step\nms", "step_seconds/mean", in_format("{:.2f}", 1e3)},
                                 {"times baseline\n(range over seeds)", "time_ratio", with_range("{:.3f}")},
                                 {"tokens/s", "tokens_per_second", in_format("{:.0f}")},
                                 {"final loss\n(interval)", "final_loss", with_error()},
                                 {"grad\nnorm", "grad_norm", in_format("{:.3g}")},
                                 {"loss scale\nleast / last / changes", "", scales},
                                 {"peak MiB\na rank", "", memory},
                                 {"sent MiB\na rank, a step", "sent_bytes", in_format("{:.2f}", 1.0 / kMib)}};
  if (std::ranges::any_of(trained, [](const Json& row) { return number_of(row["undone_share"]) > 0.0; })) {
    columns.insert(columns.begin() + 3, {"trained\nagain", "undone_share", in_format("{:.3g} %", 100.0)});
  }
  text.table(trained, columns);
}

bool weighs_energy(const CompareRequest& request) {
  return !request.utility.empty() && parse_utility(request.utility).energy > 0.0;
}

Config configuration_of(const CompareRequest& request) {
  // Wrong ones fail before anything is trained.
  parse_loss_margin(request.margin);
  const Hardware* const hardware = request.hardware.empty() ? nullptr : &find_hardware(request.hardware);
  require<ConfigError>(
      !weighs_energy(request) || hardware != nullptr,
      "--utility: energy is known for --hardware only, whose constants predict it: give --hardware, or energy=0");
  std::vector<std::string> overrides = request.overrides;
  if (request.steps > 0) overrides.push_back(fmt::format("train.steps={}", request.steps));
  Config config = load_config(request.config, overrides);
  if (request.steps > 0) config.train.stop_at_step = 0;
  std::vector<NamedFile> read = files_read(request.config, config);
  for (const std::string& precision : request.precisions) {  // NAME=FILE
    const size_t equals = precision.find('=');
    if (equals != std::string::npos) read.push_back({"--precisions", precision.substr(equals + 1)});
  }
  require_different_files({{"--json", request.json}, {"--html", request.html}}, read);
  return config;
}

// Trains in fp32, which keeps all magnitudes, from the first weights; counts the gradients of activations in linear
// layers. Null if device memory does not suffice for steps in fp32, though it did for the compared runs. With several
// ranks that is an error, since some may have enough memory and would wait for the others. Collective.
Json find_underflow(const Config& config, Communicator& communicator) {
  try {
    const Config exact = chosen_candidates(config, {"fp32"}).front().config;
    const ModelAnalysis analysis = analyze_model({.target = {}, .batches = kProbedSteps}, exact, communicator);
    ProbeRow all;
    for (const TensorFindings& tensor : analysis.checkpoints.front().tensors) {
      if (tensor.role == probe_role::kGradient || tensor.role == probe_role::kInputGradient) add(all, tensor);
    }
    return gradient_underflow(all.histogram, kProbedSteps);
  } catch (const Error& error) {
    if (communicator.size() > 1 || error.code() != ExitCode::kMemory) throw;
    log_warn("the report leaves out what formats lose of the gradients: {}", error.what());
    return nullptr;
  }
}

// Predicted joules of a step of a rank, by precision. ConfigError for a precision that the hardware does not have.
std::map<std::string, double> energies_on(const Hardware& hardware, const std::string& title, const Config& config,
                                          const std::vector<Candidate>& candidates, int ranks) {
  std::map<std::string, double> joules;
  for (const EvaluatedPrecision& one : advise(title, config, candidates, ranks, hardware).evaluations) {
    require<ConfigError>(one.runs(), "--hardware {}: the energy of {} is not known: {}", hardware.name, one.name,
                         one.reason);
    joules[one.name] = one.prediction.joules;
  }
  return joules;
}

}  // namespace

Json gradient_underflow(const ExponentHistogram& histogram, int64_t steps) {
  Json formats = Json::array();
  int64_t elements = 0;
  for (const Format format : {Format::kF16, Format::kBF16, Format::kE4M3, Format::kE5M2, Format::kE2M1}) {
    const LossScaleCurve curve = loss_scale_curve(histogram, format);
    const FormatLosses& unscaled = curve.at(-kMinCurveExponent);
    const ScaleAdvice advice = unscaled.underflowed + unscaled.overflowed == 0
                                   ? ScaleAdvice{.recommended = StaticScale{.exponent = 0, .losses = unscaled}}
                                   : advise_scale(histogram, format, kLossScaleOptions);
    elements = unscaled.elements;
    formats.push_back(to_json(curve, advice, kLossScaleOptions));
    formats.back()["format"] = info(format).name;
  }
  return {{"steps", steps}, {"elements", elements}, {"formats", formats}};
}

std::string comparison_text(const Json& figures) {
  const Json &setting = figures["setting"], &precisions = figures["precisions"];
  const auto verdict = [&](const Json& precision) -> std::string {
    return precision.contains("summary") ? precision["summary"]["verdict"] : "not trained";
  };
  const auto has_pairs = [&](const Json& one) { return one.contains("summary") && one["name"] != figures["baseline"]; };
  const auto difference = [&](const Json& precision) {
    return has_pairs(precision) ? with_error("+")(precision["summary"]["loss_difference"]) : "";
  };
  const auto power = [&](const Json& precision) {
    const bool is_known = has_pairs(precision) && !precision["summary"]["power"].is_null();
    return is_known ? per_cent(precision["summary"]["power"]) + " %" : "";
  };
  ReportText text;
  if (figures.contains("utility")) text.paragraph(figures["utility"]["sentence"].get<std::string>()).blank_line();
  text.line(
      "Verdict: final loss against {} with the same seed, nats per token, {:g} % interval; equal within {:.2g} ({})",
      figures["baseline"], 100.0 * number_of(setting["level"]), number_of(setting["margin"]), setting["margin_text"]);
  text.table(precisions,
             {{"precision", "name"}, {"verdict", "", verdict}, {"difference", "", difference}, {"power", "", power}});
  const std::string seeds = counted(std::ssize(setting["seeds"]), "seed");
  text.line("Power: the chance of {} to find equal precisions equal; 0 if the runs are too short for that", seeds);
  if (std::ranges::any_of(precisions, [&](const Json& one) { return verdict(one) == "equal"; })) {
    text.line("{}", setting["equal_text"]);
  }
  for (const Json& precision : precisions) {
    const std::string remark = remarks(precision);
    if (!remark.empty()) text.line("  {}: {}", precision["name"], remark);
  }
  text.blank_line().line("{}: {}, {}, {}, {}, {}", figures["title"], counted(std::ssize(precisions), "precision"),
                         seeds, counted(setting["steps"], "step"), counted(setting["ranks"], "rank"),
                         setting["device"]);
  text.blank_line();
  print_figures(figures, text);
  if (figures.contains("utility")) {
    text.blank_line().line(
        "Utility: minus the weighted logarithms of the ratios to the baseline; a loss counts as the share of steps "
        "that would make up for it");
    std::vector<Column> columns = {{"precision", "name"}, {"utility", "utility", with_error("+")}};
    for (const char* term : {"loss", "time", "memory", "energy"}) columns.push_back({term, term, in_format("{:+.3f}")});
    text.table(figures["utility"]["precisions"], columns);
  }
  return text.text();
}

int compare_verb(const CompareRequest& request) {
  const auto configure = [&] { return configuration_of(request); };
  return run_job(configure, [&](const Config& config, Communicator& communicator) {
    const bool leads = communicator.rank() == 0;
    OutputFile html("--html", leads ? request.html : ""), json("--json", leads ? request.json : "");
    if (leads && !is_uniform(config) && std::ranges::count(request.precisions, kConfigured) == 0) {
      log_warn(
          "--precisions replaces the configuration's own precision settings; to compare these, too, add `configured`");
    }
    set_up_threads(config, communicator);
    const std::vector<Candidate> candidates = chosen_candidates(config, request.precisions);
    std::map<std::string, double> joules;
    if (weighs_energy(request)) {
      joules = energies_on(find_hardware(request.hardware), request.config, config, candidates, communicator.size());
    }
    const PrecisionComparison comparison = compare_precisions({.title = request.config,
                                                               .seeds = request.seeds,
                                                               .baseline = request.baseline,
                                                               .margin = parse_loss_margin(request.margin)},
                                                              config, candidates, communicator);
    Json figures;
    if (leads) {
      figures = to_json(comparison);
      if (!request.utility.empty()) {
        const auto energy = [&](const std::string& name) { return joules.at(name); };
        figures["utility"] = utility_of(comparison, parse_utility(request.utility), energy);
      }
      print(comparison_text(figures));
    }
    if (request.html.empty() && request.json.empty()) return;
    const Json underflow = find_underflow(config, communicator);
    if (!leads) return;
    if (!underflow.is_null()) figures["gradients"] = underflow;
    figures["device_formats"] =
        analyze_formats({.device = config.device, .samples = kFormatSamples, .products = request.products});
    json.write(figures);
    html.write(page_document(kComparisonPage, figures));
  });
}

}  // namespace mantissa
