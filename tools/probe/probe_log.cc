#include "tools/probe/probe_log.h"

#include <fmt/core.h>
#include <sqlite3.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "core/base/check.h"
#include "core/base/log.h"
#include "core/base/process.h"

namespace mantissa {
namespace {

constexpr int kBusyTimeoutMs = 5000;  // how long to wait for another process that has locked the file

namespace fs = std::filesystem;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kApplicationId = 0x6d747062;  // "mtpb"
constexpr int64_t kVersion = 1;

std::vector<DatabaseValue> values_of(const ProbedStep& step, const ProbeRow& row, double drift) {
  const bool is_tensor = row.losses.elements > 0 || row.stagnation.elements > 0;
  const auto count = [](bool is_known, int64_t value) -> DatabaseValue {
    return is_known ? DatabaseValue(value) : DatabaseValue();
  };
  const auto real = [](double value) -> DatabaseValue { return static_cast<double>(static_cast<float>(value)); };
  const FormatLosses& losses = row.losses;
  std::vector<DatabaseValue> values = {
      step.step + 1,        row.role, row.tensor, row.format, real(is_tensor ? static_cast<double>(row.scale) : kNone),
      real(step.loss_scale)};
  for (const int64_t number :
       {losses.elements, losses.zeros, losses.underflowed, losses.subnormal, losses.overflowed, losses.non_finite}) {
    values.push_back(count(is_tensor, number));
  }
  values.insert(values.end(), {real(amax_of(row)), real(drift),
                               is_tensor ? DatabaseValue(encode_histogram(row.histogram)) : DatabaseValue(),
                               real(snr_db(row)), real(cosine_of(row)), real(noise_ratio(row))});
  for (const int64_t stagnant : row.stagnation.stagnant) values.push_back(count(row.stagnation.elements > 0, stagnant));
  return values;
}

// Moves the file aside, with SQLite's files beside it. Several may be kept.
std::string keep_as_previous(const std::string& path) {
  std::string kept = path + ".previous";
  for (int number = 2; fs::exists(kept); ++number) kept = fmt::format("{}.previous.{}", path, number);
  for (const char* const suffix : {"", "-wal", "-shm", "-journal"}) {
    if (fs::exists(path + suffix)) fs::rename(path + suffix, kept + suffix);
  }
  return kept;
}

void check_version(const Database& database) {
  const auto number = [&](const char* pragma) { return std::get<int64_t>(database.value(pragma)); };
  require<DataError>(number("PRAGMA application_id") == kApplicationId,
                     "{}: expected a probe file, got another database", database.path());
  const int64_t version = number("PRAGMA user_version");
  require<DataError>(version == kVersion,
                     "{}: expected a probe file of version {}, got {}: another version of this program wrote it",
                     database.path(), kVersion, version);
}

// Opens the file of a continued run. DataError if it is damaged.
std::unique_ptr<Database> continue_file(const std::string& path, int64_t next_step) {
  auto database = std::make_unique<Database>(path, Database::Mode::kWrite);
  check_version(*database);
  const auto found = std::get<std::string>(database->value("PRAGMA quick_check(1)"));
  require<DataError>(found == "ok", "{}: the file is damaged: {}", path, found);
  database->run(fmt::format("DELETE FROM probes WHERE step > {}", next_step));
  return database;
}

std::unique_ptr<Database> create_file(const std::string& path) {
  std::string columns;
  for (const ProbeColumn& column : kProbeColumns) {
    columns += fmt::format("{}{} {}", columns.empty() ? "" : ", ", column.name, column.type);
  }
  auto database = std::make_unique<Database>(path, Database::Mode::kWrite);
  database->run(
      fmt::format("BEGIN; PRAGMA application_id = {}; PRAGMA user_version = {}; CREATE TABLE probes ({}); COMMIT",
                  kApplicationId, kVersion, columns));
  return database;
}

}  // namespace

void Database::fail() const { throw DataError("{}: {}", path_, sqlite3_errmsg(connection_.get())); }

Database::Database(const std::string& path, Mode mode) : path_(path), connection_(nullptr, sqlite3_close_v2) {
  const int flags = mode == Mode::kRead ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  // Not SQLITE_OPEN_NOFOLLOW, which refuses links to folders on the way, too.
  const std::string obstacle = mode == Mode::kWrite ? why_not_to_write(path) : "";
  require<DataError>(obstacle.empty(), "{}: {}", path, obstacle);
  sqlite3* connection = nullptr;
  const int status = sqlite3_open_v2(path.c_str(), &connection, flags, nullptr);
  connection_.reset(connection);  // made even if the file cannot be opened
  if (status != SQLITE_OK) fail();
  sqlite3_busy_timeout(connection, kBusyTimeoutMs);
  // VACUUM INTO and ATTACH would create other files.
  if (mode == Mode::kRead) sqlite3_limit(connection, SQLITE_LIMIT_ATTACHED, 0);
}

void Database::run(const std::string& sql) const {
  if (sqlite3_exec(connection_.get(), sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) fail();
}

DatabaseValue Database::value(std::string_view sql) const {
  Statement statement = prepare(sql);
  MANTISSA_CHECK(statement.step(), "[database] {} returned no row", sql);
  return statement.at(0);
}

Database::Statement::Statement(const Database& database, std::string_view sql)
    : database_(database), statement_(nullptr, sqlite3_finalize) {
  sqlite3_stmt* statement = nullptr;
  const char* rest = nullptr;
  const int status =
      sqlite3_prepare_v2(database.connection_.get(), sql.data(), static_cast<int>(sql.size()), &statement, &rest);
  if (status != SQLITE_OK) database.fail();
  statement_.reset(statement);
  const std::string_view more(rest, static_cast<size_t>(sql.data() + sql.size() - rest));
  require<DataError>(statement != nullptr && more.find_first_not_of("; \t\n\r") == std::string_view::npos,
                     "{}: expected one SQL statement, got '{}'", database.path_, sql);
}

void Database::Statement::bind(const std::vector<DatabaseValue>& values) {
  sqlite3_stmt* const statement = statement_.get();
  sqlite3_reset(statement);
  for (size_t i = 0; i < values.size(); ++i) {
    const int place = static_cast<int>(i) + 1;
    const auto bind_value = [&]<typename T>(const T& value) {
      if constexpr (std::is_same_v<T, int64_t>) return sqlite3_bind_int64(statement, place, value);
      if constexpr (std::is_same_v<T, double>) return sqlite3_bind_double(statement, place, value);
      if constexpr (std::is_same_v<T, std::string>)
        return sqlite3_bind_text64(statement, place, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
      if constexpr (std::is_same_v<T, std::vector<std::byte>>)
        return sqlite3_bind_blob64(statement, place, value.data(), value.size(), SQLITE_TRANSIENT);
      return sqlite3_bind_null(statement, place);
    };
    const int status = std::visit(bind_value, values[i]);
    if (status != SQLITE_OK) database_.fail();
  }
}

bool Database::Statement::step() {
  const int status = sqlite3_step(statement_.get());
  if (status != SQLITE_ROW && status != SQLITE_DONE) database_.fail();
  return status == SQLITE_ROW;
}

std::vector<std::string> Database::Statement::columns() const {
  std::vector<std::string> names;
  for (int i = 0; i < sqlite3_column_count(statement_.get()); ++i) {
    names.emplace_back(sqlite3_column_name(statement_.get(), i));
  }
  return names;
}

bool Database::Statement::is_query() const {
  return sqlite3_column_count(statement_.get()) > 0 && sqlite3_stmt_readonly(statement_.get()) != 0;
}

DatabaseValue Database::Statement::at(int column) const {
  sqlite3_stmt* const statement = statement_.get();
  switch (sqlite3_column_type(statement, column)) {
    case SQLITE_INTEGER:
      return sqlite3_column_int64(statement, column);
    case SQLITE_FLOAT:
      return sqlite3_column_double(statement, column);
    case SQLITE_TEXT:
      return std::string(reinterpret_cast<const char*>(sqlite3_column_text(statement, column)));
    case SQLITE_BLOB: {
      const auto* const data = static_cast<const std::byte*>(sqlite3_column_blob(statement, column));
      return std::vector<std::byte>(data, data + sqlite3_column_bytes(statement, column));
    }
    default:
      return std::monostate();
  }
}

double snr_db(const ProbeRow& row) { return row.error.elements > 0 ? signal_to_noise_db(row.error) : kNone; }

double cosine_of(const ProbeRow& row) { return row.error.elements > 0 ? cosine(row.error) : kNone; }

double noise_ratio(const ProbeRow& row) {
  if (row.error.elements == 0 || row.error.non_finite > 0 || row.batch_noise == 0.0) return kNone;
  return row.error.error_squares / row.batch_noise;
}

bool has_loss_scale(const std::string& role) {
  return role == probe_role::kGradient || role == probe_role::kInputGradient ||
         role == probe_role::kParameterGradient || role == probe_role::kWire;
}

double amax_of(const ProbeRow& row) {
  return row.losses.elements > 0 ? static_cast<double>(std::bit_cast<float>(row.histogram.amax)) : kNone;
}

double underflow_share(const ProbedStep& step) {
  int64_t underflowed = 0, values = 0;
  for (const ProbeRow& row : step.rows) {
    if (row.role != probe_role::kGradient) continue;
    if (row.losses.non_finite > 0) return kNone;
    underflowed += row.losses.underflowed;
    values += row.losses.elements - row.losses.zeros;
  }
  return values > 0 ? static_cast<double>(underflowed) / static_cast<double>(values) : kNone;
}

ProbeLog::ProbeLog(const std::string& path, std::optional<int64_t> steps) : path_(path) {
  if (steps && fs::exists(path)) {
    try {
      database_ = continue_file(path, *steps);
    } catch (const DataError& error) {
      log_warn("{}; it is kept as {}", error.what(), keep_as_previous(path));
    }
  }
  if (!database_) {
    if (fs::exists(path)) keep_as_previous(path);
    database_ = create_file(path);
  }
  // Readers and the run do not wait for each other. Each step is written to the main file at once.
  database_->run("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 1");
  std::string places = "?";
  for (size_t i = 1; i < std::size(kProbeColumns); ++i) places += ", ?";
  insert_.emplace(database_->prepare(fmt::format("INSERT INTO probes VALUES ({})", places)));
}

ProbeLog::~ProbeLog() {
  insert_.reset();
  try {
    database_->run("PRAGMA journal_mode = DELETE");  // a single file, to copy and read anywhere
  } catch (const DataError&) {
    // Another program reads it: it stays readable together with the files beside it.
  }
}

void ProbeLog::append(const ProbedStep& step) {
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path_, error);
  require<DataError>(!error, "{}: somebody removed it", path_);
  require<DataError>(bytes >= bytes_, "{}: somebody truncated it", path_);  // SQLite lets it grow only
  database_->run("BEGIN");
  for (const ProbeRow& row : step.rows) {
    const double amax = amax_of(row) / (has_loss_scale(row.role) ? static_cast<double>(step.loss_scale) : 1.0);
    double drift = kNone;
    if (!std::isnan(amax)) {
      const auto [before, is_new] = amaxes_.try_emplace({row.role, row.tensor}, amax);
      if (!is_new) drift = std::log2(amax / std::exchange(before->second, amax));
    }
    insert_->bind(values_of(step, row, drift));
    insert_->step();
  }
  database_->run("COMMIT");
  bytes_ = fs::file_size(path_, error);
}

Database open_probes(const std::string& path) {
  try {
    Database database(path, Database::Mode::kRead);
    check_version(database);
    return database;
  } catch (const DataError& error) {
    throw DataError("{} (expected a probe file of this version of the program)", error.what());
  }
}

}  // namespace mantissa
