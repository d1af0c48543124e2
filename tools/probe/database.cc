#include "tools/probe/database.h"

#include <fmt/core.h>
#include <sqlite3.h>

#include <filesystem>
#include <system_error>

#include "core/base/check.h"

namespace mantissa {
namespace {

constexpr int kBusyTimeoutMs = 5000;  // how long to wait for another process that has locked the file

template <typename... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <typename... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;  // for clang before 17

}  // namespace

void Database::fail() const { throw DataError(fmt::format("{}: {}", path_, sqlite3_errmsg(connection_.get()))); }

Database::Database(const std::string& path, Mode mode) : path_(path), connection_(nullptr, sqlite3_close_v2) {
  const int flags = mode == Mode::kRead ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  // Not SQLITE_OPEN_NOFOLLOW, which refuses links to folders on the way, too.
  std::error_code ignored;
  require<DataError>(mode == Mode::kRead || !std::filesystem::is_symlink(path, ignored),
                     "{}: it is a symbolic link, which is not followed to write", path);
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
    const int status = std::visit(Overloaded{[&](std::monostate) { return sqlite3_bind_null(statement, place); },
                                             [&](int64_t value) { return sqlite3_bind_int64(statement, place, value); },
                                             [&](double value) { return sqlite3_bind_double(statement, place, value); },
                                             [&](const std::string& text) {
                                               return sqlite3_bind_text64(statement, place, text.data(), text.size(),
                                                                          SQLITE_TRANSIENT, SQLITE_UTF8);
                                             },
                                             [&](const std::vector<std::byte>& bytes) {
                                               return sqlite3_bind_blob64(statement, place, bytes.data(), bytes.size(),
                                                                          SQLITE_TRANSIENT);
                                             }},
                                  values[i]);
    if (status != SQLITE_OK) database_.fail();
  }
}

bool Database::Statement::step() {
  const int status = sqlite3_step(statement_.get());
  if (status != SQLITE_ROW && status != SQLITE_DONE) database_.fail();
  return status == SQLITE_ROW;
}

std::vector<std::string> Database::Statement::columns() const {
  const int count = sqlite3_column_count(statement_.get());
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
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

}  // namespace mantissa
