#include "tools/lab/analyze/analyze_verbs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "core/autograd/precision.h"
#include "core/base/check.h"
#include "core/base/log.h"
#include "tools/config/precision_phases.h"
#include "tools/lab/experiment/paired_comparison.h"
#include "tools/run/report/report.h"

namespace mantissa {
namespace {

// Answers to "does this precision harm?" One step does not tell of backward products.
constexpr const char *kHarm = "harm", *kNoHarm = "no harm", *kNoForwardHarm = "no forward harm", *kOpen = "open";
// Counts do not answer it. They are above thresholds, or not.
constexpr const char *kAbove = "above thresholds", *kBelow = "below thresholds";

struct EvidenceKind {
  const char *key, *name;  // in a row of the figures, and in sentences
  const char* strength;    // over weaker kinds
};
constexpr EvidenceKind kTraining = {"training", "training",
                                    "it lowers all products together, and errors act on through all steps"};
constexpr EvidenceKind kOneStep = {
    "one_step", "one step", "it measures a loss; counts show how many values a format loses, not what that does"};

constexpr double kRiseByChance = 0.025;  // share of harmless products whose 95 % interval lies above 0 by chance
// Harmless products are seldom taken for harmful: 5 %, half each for their number and for the largest of them.
constexpr double kErrorOfEach = 0.025;

// Lists by name, in the order of their first items.
template <typename T>
using Named = nlohmann::ordered_map<std::string, std::vector<T>>;

Json training_evidence(const Json& precision, const Json& baseline) {
  if (!precision.contains("summary")) {
    return {{"answer", kOpen}, {"text", "not trained"}, {"why", precision.at("refusal")}};
  }
  if (precision.at("name") == baseline) return {{"answer", kOpen}, {"text", "baseline"}, {"why", ""}};
  const Json& summary = precision.at("summary");
  const std::string verdict = summary.at("verdict");
  Json found = {{"answer", kOpen}, {"text", verdict}, {"why", summary.at("why")}};
  if (verdict == "worse") found["answer"] = kHarm;
  if (verdict == "equal" || verdict == "better") found["answer"] = kNoHarm;
  const Json& difference = summary.at("loss_difference");
  if (difference.is_null()) return found;
  found["difference"] = difference;
  found["text"] = fmt::format("{} {}", verdict, with_error("+")(difference));
  return found;
}

// A single update shows no harm of lowered gradients: in docs/results/risk_bands.md 0 of 537 decisions did harm,
// whatever they lost. Backward products are untested unless the loss rises all the same.
bool lowers_forward(const Json& decision) {
  const Json& product = decision.at("product");
  return product.is_null() || product == name(Product::kForward);
}

// `decisions`: the tried decisions of a format, out of the `products` that it lowers in a training.
Json one_step_evidence(const std::vector<Json>& decisions, int64_t products, int64_t batches) {
  const auto all = static_cast<int64_t>(decisions.size());
  const auto t = [&](double chance) { return student_t_quantile(1.0 - chance, std::max(batches - 1, int64_t{1})); };
  // An interval so many times as wide tells even the largest rise of all products from chance (Bonferroni).
  const double wider = t(kErrorOfEach / static_cast<double>(all)) / t(kRiseByChance);
  int64_t harms = 0, harmless = 0, untested = 0;
  bool is_certain = false;
  const Json* worst = nullptr;
  std::pair<bool, double> largest = {false, -HUGE_VAL};
  for (const Json& one : decisions) {
    double loss = number_of(one.at("loss").at("mean"));
    const double half_width = number_of(one.at("loss").at("half_width"));
    if (std::isnan(loss)) loss = HUGE_VAL;  // of gradients or a loss that are not finite
    const bool rises = loss == HUGE_VAL || (loss >= kHarmNats && loss > half_width);
    const bool alone = loss == HUGE_VAL || (rises && loss > wider * half_width);
    is_certain = is_certain || alone;
    harms += rises;
    untested += !rises && !lowers_forward(one);
    harmless += lowers_forward(one) && loss + half_width < kHarmNats;
    if (const std::pair rank(alone, loss); rank > largest) largest = rank, worst = &one;
  }
  const bool is_harm = is_certain || binomial_tail(harms, all, kRiseByChance) < kErrorOfEach;
  const bool is_part = all < products;  // says nothing about the rest
  const int64_t tested = all - untested, open = tested - harmless;
  const char* const if_no_harm = open == 0 && tested > 0 && !is_part ? kNoForwardHarm : kOpen;
  Json found = {{"answer", is_harm ? kHarm : if_no_harm},
                {"products", all},
                {"of", products},
                {"untested", untested},
                {"harmed", harms},
                {"shown_harmless", harmless},
                {"worst", worst->at("name")},
                {"worst_loss", worst->at("loss")},
                {"text", fmt::format("{} of {} harm", harms, all)}};
  if (!is_harm) {
    const std::string rest = untested > 0 ? fmt::format(", {} untested", untested) : "";
    found["text"] = fmt::format("{} of {} {}{}", open, tested, open > 0 ? "open" : "harm", rest);
  }
  if (is_part) {
    const std::string tried = fmt::format("{} of {} products tried", all, products);
    found["text"] = harms > 0 ? fmt::format("{}, {} harm", tried, harms) : tried;
  }
  return found;
}

// By bands alone; null if shares of nothing are rated.
Json band_evidence(const std::vector<Json>& decisions) {
  int64_t rated = 0, high = 0;
  for (const Json& one : decisions) {
    if (!one.at("band").is_string() || one.at("band") == "unrated") continue;
    ++rated;
    high += one.at("band") == "fp32";
  }
  if (rated == 0) return nullptr;
  return {{"answer", high > 0 ? kAbove : kBelow}, {"text", fmt::format("{} of {} at risk", high, rated)}};
}

class Weighing {
 public:
  void add(const EvidenceFile& file) {
    try {
      const Json& figures = file.figures;
      require<ConfigError>(
          figures.is_object() && figures.contains("verb") && figures.contains("training"),
          "{}: expected a file that this version of compare, analyze sensitivity or analyze model writes with --json",
          file.name);
      check_training(file);
      const std::string verb = figures.at("verb");
      if (verb == "compare") return add_trainings(file);
      if (verb == "analyze sensitivity") return add_decisions(file);
      if (verb == "analyze model") {
        const Json& setting = figures.at("setting");
        require_same(file, setting.at("precision"), setting.at("config"));
        const Json& level = figures.at("verdict").at("level");
        const char* const answer = level == "good" ? kBelow : kAbove;
        const Json found = {{"answer", answer}, {"text", level == "bad" ? "Inf or NaN" : answer}};
        return set(file, setting.at("precision"), "counts", found);
      }
      throw ConfigError("{}: no evidence on precisions: `{}` wrote it", file.name, verb);
    } catch (const Json::exception& error) {
      throw ConfigError("{}: damaged, or from another version of the program: {}", file.name, error.what());
    }
  }

  Json weighed() {
    Json missing = Json::array(), disagreements = Json::array();
    std::set<std::string> known, untrained, unmeasured;
    const std::string baseline = baseline_.empty() ? "fp32" : baseline_;
    for (Json& row : rows_) {
      const std::string name = row["precision"];
      const Json& found = row["one_step"];
      if (!found.is_null() && (found["products"] == found["of"] || found["answer"] == kHarm)) known.insert(name);
      conclude(row, disagreements);
      if (name == baseline || row["by"] == "training") continue;
      if (!row["training"].is_null()) {
        missing.push_back(fmt::format("{}: {}", name, row["training"]["why"]));
      } else {
        untrained.insert(name);
      }
      // One step has no history to scale by; current has the formats of delayed.
      if (parse_low_format(name)) unmeasured.insert(name == "delayed" ? "current" : name);
    }
    for (const std::string& name : known) unmeasured.erase(name);
    constexpr const char* kSame = "with the overrides of these files";
    if (!untrained.empty()) {
      missing.push_back(fmt::format("trained pairs, {}: mantissa compare {} --precisions {},{} --json FILE", kSame,
                                    target_, baseline, fmt::join(untrained, ",")));
    }
    if (!unmeasured.empty()) {
      missing.push_back(
          fmt::format("cheaper, the loss of one step, {}: mantissa analyze sensitivity {} --formats {} --json FILE",
                      kSame, target_, fmt::join(unmeasured, ",")));
    }
    return {{"verb", "analyze evidence"}, {"target", target_},     {"training", training_},
            {"harm_nats", kHarmNats},     {"baseline", baseline_}, {"precisions", rows_},
            {"trainings", trainings_},    {"missing", missing},    {"disagreements", disagreements}};
  }

 private:
  void check_training(const EvidenceFile& file) {
    const Json& given = file.figures.at("training");
    if (first_.empty()) {
      first_ = file.name;
      training_ = given;
      target_ = file.figures.contains("target") ? file.figures.at("target") : file.figures.at("title");
      return;
    }
    Json all = training_;
    all.update(given);
    for (const auto& [key, value] : all.items()) {
      const std::string here = given.value(key, "absent"), there = training_.value(key, "absent");
      require<ConfigError>(here == there, "{}: another model or training than {}: {} is {} here and {} there",
                           file.name, first_, key, here, there);
    }
  }

  void set(const EvidenceFile& file, const std::string& given, const char* kind, const Json& found) {
    const std::string precision = without_alias(given);
    auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Json& one) { return one["precision"] == precision; });
    if (row == rows_.end()) {
      rows_.push_back({{"precision", precision}, {"answer", kOpen}});
      row = rows_.end() - 1;
      for (const char* const unknown : {"training", "one_step", "counts", "bands", "by"}) (*row)[unknown] = nullptr;
    }
    require<ConfigError>(
        (*row)[kind].is_null(), "{}: an earlier file of this verb has {} as well: {}", file.name, precision,
        kind == std::string_view(kOneStep.key) ? "parts are not joined: run analyze sensitivity once over all layers"
                                               : "give one of the two");
    (*row)[kind] = found;
  }

  // Any precision without a name is "configured", and names do not cover all settings: precision.weights.
  void require_same(const EvidenceFile& file, const std::string& name, const Json& yaml) {
    const Config given = parse_config(yaml, fmt::format("{}, {}", file.name, name));
    Config config;
    config.precision = given.precision;
    config.precision_schedule = given.precision_schedule;
    config.precision_adaptive = given.precision_adaptive;
    if (given.precision.pattern == PrecisionPattern::kNone) config.precision.pattern_blocks = 1;  // of no pattern
    const auto& [first, known] = precisions_.try_emplace(without_alias(name), file.name, config).first->second;
    const std::vector<std::string> differences = training_differences(known, config);
    if (differences.empty()) return;
    throw ConfigError("{}: {} is another precision than in {}: {}: give files of one precision", file.name, name, first,
                      differences.front());
  }

  void add_trainings(const EvidenceFile& file) {
    const std::string baseline = without_alias(file.figures.at("baseline"));
    require<ConfigError>(baseline_.empty() || baseline == baseline_,
                         "{}: compares with {}, and an earlier file with {}: give files of one baseline", file.name,
                         baseline, baseline_);
    const bool is_first = baseline_.empty();
    baseline_ = baseline;
    const Json& setting = file.figures.at("setting");
    trainings_.push_back(fmt::format(
        "{}, {}, equal within {:.3g} nats of {} ({})", counted(std::ssize(setting.at("seeds")), "seed"),
        counted(setting.at("steps"), "step"), number_of(setting.at("margin")), baseline_, setting.at("margin_text")));
    for (const Json& precision : file.figures.at("precisions")) {
      if (precision.contains("summary")) {
        require_same(file, precision.at("name"), precision.at("config"));
        require_consistent(file.name, file.figures, precision);
      }
      if (!is_first && without_alias(precision.at("name")) == baseline_) continue;
      set(file, precision.at("name"), "training", training_evidence(precision, file.figures.at("baseline")));
      const std::string outlier = outlier_of(precision.value("summary", Json()));
      if (!outlier.empty()) trainings_.push_back(fmt::format("{}: {}", precision.at("name"), outlier));
    }
  }

  void add_decisions(const EvidenceFile& file) {
    Named<Json> by_format;
    std::set<std::string> met;  // a repeated decision is the same product
    for (const Json& one : file.figures.at("decisions")) {
      // A recipe leaves the head in 16 bits: what it would do there is no part of it.
      if (one.contains("refusal") || !one.at("is_lowered").get<bool>()) continue;
      const double half_width = number_of(one.at("loss").at("half_width"));  // NaN where it is not known
      require<ConfigError>(!(half_width < 0.0), "{}: {}: expected a half_width of its loss from 0, got {}", file.name,
                           one.at("name").get<std::string>(), half_width);
      if (met.insert(one.at("name")).second) by_format[one.at("format").get<std::string>()].push_back(one);
    }
    for (const auto& [format, decisions] : by_format) {
      const int64_t products = file.figures.at("lowered_decisions").at(format);
      require<ConfigError>(products >= std::ssize(decisions),
                           "{}: lowered_decisions: expected the {} tried ones of {} or more, got {}", file.name,
                           decisions.size(), format, products);
      set(file, format, "one_step", one_step_evidence(decisions, products, file.figures.at("batches")));
      if (const Json bands = band_evidence(decisions); !bands.is_null()) set(file, format, "bands", bands);
    }
  }

  static void conclude(Json& row, Json& disagreements) {
    const auto answer = [&](const char* kind) {
      return row[kind].is_null() ? std::string(kOpen) : row[kind]["answer"].get<std::string>();
    };
    const std::string training = answer("training"), one_step = answer("one_step");
    const bool is_trained = training != kOpen;
    row["answer"] = is_trained ? training : one_step;
    row["by"] = is_trained ? Json("training") : one_step != kOpen ? Json("one_step") : Json();
    if (row["by"].is_null()) return;
    const EvidenceKind& deciding = is_trained ? kTraining : kOneStep;
    const auto disagree = [&](const char* kind, const char* name) {
      disagreements.push_back(fmt::format("{}: {} says {}, {} {}. {} counts: {}.", row["precision"], deciding.name,
                                          said(row[deciding.key]), name, said(row[kind]),
                                          is_trained ? "Training" : "One step", deciding.strength));
    };
    const bool differ = (one_step == kHarm) != (training == kHarm);
    if (is_trained && one_step != kOpen && differ) disagree("one_step", "one step");
    for (const char* const counts : {"counts", "bands"}) {
      if (answer(counts) == (row["answer"] == kHarm ? kBelow : kAbove)) disagree(counts, "counts are");
    }
  }

  // "harm (1 of 27 harm; most by head fprop nvfp4, +0.0054 nats)"
  static std::string said(const Json& found) {
    std::string text = found["answer"];
    if (found["text"] != text) text += fmt::format(" ({})", found["text"]);
    if (found["answer"] != kHarm || !found.contains("worst")) return text;
    text.back() = ';';
    const double loss = number_of(found["worst_loss"]["mean"]);
    return fmt::format("{} most by {}, {})", text, found["worst"],
                       std::isnan(loss) ? "not finite" : fmt::format("{:+.4f} nats", loss));
  }

  std::string first_, target_, baseline_;
  Json training_, rows_ = Json::array(), trainings_ = Json::array();
  std::map<std::string, std::pair<std::string, Config>> precisions_;  // by name: the first file with it
};

// "As good as fp32 in training: bf16, current. Harm not known: nvfp4."
std::string verdict_line(const Json& figures) {
  const auto group = [&](const Json& row) -> std::string {
    const bool is_harm = row["answer"] == kHarm;
    if (row["by"] == "training") {
      return fmt::format("{} {} in training", is_harm ? "Worse than" : "As good as", figures["baseline"]);
    }
    if (row["by"].is_null()) return "Harm not known";
    return is_harm ? "Harmed in one step, training not known"
                   : "Not harmed forward in one step, backward and training not known";
  };
  Named<std::string> groups;
  for (const Json& row : figures["precisions"]) {
    const bool is_reference = row["precision"] == figures["baseline"] && row["by"].is_null();
    if (!is_reference) groups[group(row)].push_back(row["precision"]);
  }
  if (groups.empty()) return "Nothing to weigh: the files have no precision beside the baseline.";
  std::string text;
  for (const auto& [name, precisions] : groups) {
    text += fmt::format("{}{}: {}.", text.empty() ? "" : " ", name, fmt::join(precisions, ", "));
  }
  return text;
}

}  // namespace

Json weigh_evidence(const std::vector<EvidenceFile>& files) {
  Weighing weighing;
  for (const EvidenceFile& file : files) weighing.add(file);
  return weighing.weighed();
}

std::string evidence_text(const Json& figures) {
  const auto cell = [](const Json& found) { return found.is_null() ? "-" : found["text"].get<std::string>(); };
  const auto counts = [&](const Json& row) {
    const Json &model = row["counts"], &bands = row["bands"];
    return model.is_null() || bands.is_null() ? cell(model.is_null() ? bands : model)
                                              : fmt::format("{}, {}", cell(model), cell(bands));
  };
  const auto weighed = [&](const Json& row) -> std::string {
    if (row["by"].is_null()) return row["precision"] == figures["baseline"] ? "" : "not known";
    return fmt::format("{}, by {}", row["answer"], row["by"] == "training" ? kTraining.name : kOneStep.name);
  };
  ReportText text;
  text.paragraph(verdict_line(figures)).blank_line();
  text.line("{}: evidence, the strongest first:", figures["target"]);
  text.table(figures["precisions"], {{"precision", "precision"},
                                     {"training, pairs of runs\nfinal loss beside the baseline", "training", cell},
                                     {"one step\nproducts alone", "one_step", cell},
                                     {"counts", "", counts},
                                     {"weighed", "", weighed}});
  for (const Json& line : figures["trainings"]) text.line("Training: {}", line);
  if (!figures["precisions"].empty()) {
    text.line(
        "One step: harm is a rise of {:g} nats or more that its 95 % interval tells from 0; backward products without "
        "one are untested, since a single update shows little of their harm",
        figures["harm_nats"]);
  }
  if (!figures["disagreements"].empty()) text.blank_line().line("Where they disagree:");
  for (const Json& line : figures["disagreements"]) text.line("  {}", line);
  if (!figures["missing"].empty()) text.blank_line().line("To know more:");
  for (const Json& line : figures["missing"]) text.line("  {}", line);
  return text.text();
}

int evidence_verb(const std::vector<std::string>& files, const std::string& json) {
  return run_reported([&] {
    std::vector<NamedFile> read;
    read.reserve(files.size());
    for (const std::string& file : files) read.push_back({"FILE", file});
    require_different_files({{"--json", json}}, read);
    OutputFile output("--json", json);
    std::vector<EvidenceFile> evidence;
    evidence.reserve(files.size());
    for (const std::string& file : files) evidence.push_back({.name = file, .figures = read_figures(file)});
    const Json figures = weigh_evidence(evidence);
    print(evidence_text(figures));
    output.write(figures);
  });
}

}  // namespace mantissa
