#include "core/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "core/base/error.h"

namespace mantissa {
namespace {

std::string rank_text;  // "[rank 1] " if there are several ranks

spdlog::level::level_enum to_spdlog(LogLevel level) { return static_cast<spdlog::level::level_enum>(level); }

}  // namespace

void start_logging(int rank, int ranks) {
  rank_text = ranks > 1 ? fmt::format("[rank {}] ", rank) : "";
  auto logger = std::make_shared<spdlog::logger>("mantissa", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%v");
  logger->set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

bool is_logged(LogLevel level) { return spdlog::should_log(to_spdlog(level)); }

void log_line(LogLevel level, std::string_view line) {
  const auto name = spdlog::level::to_string_view(to_spdlog(level));
  // Only warnings and errors say what they are, and from which rank.
  const std::string prefix =
      level < LogLevel::kWarning ? "" : fmt::format("{}: {}", std::string_view(name.data(), name.size()), rank_text);
  const std::string text = prefix + std::string(line);
  spdlog::default_logger_raw()->log(to_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

void flush_log() { spdlog::default_logger()->flush(); }

int run_reported(const std::function<void()>& body) {
  try {
    body();
    return static_cast<int>(ExitCode::kOk);
  } catch (const std::exception& exception) {
    log_error("{}", exception.what());
    const auto* error = dynamic_cast<const Error*>(&exception);
    return static_cast<int>(error ? error->code() : ExitCode::kInternal);
  }
}

}  // namespace mantissa
