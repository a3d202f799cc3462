// SPDX-License-Identifier: Apache-2.0
#include "profiler/sqlite.h"

#include <algorithm>
#include <cctype>
#include <system_error>

#include <fmt/format.h>

namespace stowage::profiler {
namespace {

std::string_view mend(int code) {
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "another process holds it: end that process, or give each process a store of its own";
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return "the file is damaged, cut short or no store: move it away and profile again";
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
      return "choose a store in a folder that you may write to";
    case SQLITE_FULL:
      return "free some space on its disk";
    case SQLITE_CONSTRAINT:
      return "the records contradict one another; please report this";
    case SQLITE_ERROR:
      return "its tables are not those of its schema: move it away and profile again";
    default:
      return "check its disk";
  }
}

std::string uri_escape(std::string_view path) {
  std::string escaped;
  for (const char c : path) {
    const bool special = c == '?' || c == '#' || c == '%';
    escaped += special ? fmt::format("%{:02x}", c) : std::string(1, c);
  }
  return escaped;
}

}  // namespace

std::string system_text(int error) {
  std::string text = std::generic_category().message(error);
  if (!text.empty()) text.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(text.front())));
  return text;
}

Database::Database(const std::string& path, int flags, std::string_view parameters) : path_(path) {
  const std::string location = parameters.empty() ? path : fmt::format("file:{}?{}", uri_escape(path), parameters);
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(location.c_str(), &handle, flags | SQLITE_OPEN_URI | SQLITE_OPEN_EXRESCODE, nullptr);
  handle_.reset(handle);
  if (code != SQLITE_OK) fail(code, "");
  sqlite3_busy_timeout(handle, static_cast<int>(kBusyTimeout.count()));
}

void Database::execute(const std::string& sql) {
  const int code = sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  // Of a long script only the error's own words help.
  if (code != SQLITE_OK) fail(code, sql.size() < 80 ? sql : "");
}

Statement Database::prepare(std::string_view sql) const {
  sqlite3_stmt* handle = nullptr;
  const int code = sqlite3_prepare_v2(handle_.get(), sql.data(), static_cast<int>(sql.size()), &handle, nullptr);
  if (code != SQLITE_OK) fail(code, sql);
  return Statement(*this, handle, sql);
}

std::int64_t Database::integer(std::string_view sql) const {
  Statement statement = prepare(sql);
  if (!statement.step()) fail(SQLITE_CORRUPT, sql);
  return statement.next<std::int64_t>();
}

std::string Database::text(std::string_view sql) const {
  Statement statement = prepare(sql);
  if (!statement.step()) fail(SQLITE_CORRUPT, sql);
  return statement.next_text();
}

void Database::fail(int code, std::string_view sql) const {
  std::string cause = sqlite3_errmsg(handle_.get());
  std::replace(cause.begin(), cause.end(), '\n', ' ');  // of a damaged schema SQLite quotes a page
  if (const int system = sqlite3_system_errno(handle_.get()); (code & 0xff) == SQLITE_CANTOPEN && system != 0) {
    cause = system_text(system);
  }
  const std::string where = sql.empty() ? "" : fmt::format(" in \"{}\"", sql);
  throw SqliteError(fmt::format("cannot {} store '{}': {}{}; {}", verb_, path_, cause, where, mend(code)), code);
}

Statement::Statement(const Database& database, sqlite3_stmt* handle, std::string_view sql)
    : database_(database), handle_(handle), sql_(sql) {}

bool Statement::step() {
  column_ = 0;
  const int code = sqlite3_step(handle_.get());
  if (code != SQLITE_ROW && code != SQLITE_DONE) database_.fail(code, sql_);
  return code == SQLITE_ROW;
}

void Statement::bind_one(int parameter, std::int64_t value) {
  if (const int code = sqlite3_bind_int64(handle_.get(), parameter, value); code != SQLITE_OK) {
    database_.fail(code, sql_);
  }
}

void Statement::bind_one(int parameter, std::string_view value) {
  const int code =
      sqlite3_bind_text64(handle_.get(), parameter, value.data(), value.size(), SQLITE_STATIC, SQLITE_UTF8);
  if (code != SQLITE_OK) database_.fail(code, sql_);
}

void Statement::bind_one(int parameter, OrNull value) {
  bind_one(parameter, value.value == kNone ? std::nullopt : std::optional<std::int64_t>(value.value));
}

void Statement::bind_one(int parameter, std::optional<std::int64_t> value) {
  if (value) return bind_one(parameter, *value);
  if (const int code = sqlite3_bind_null(handle_.get(), parameter); code != SQLITE_OK) database_.fail(code, sql_);
}

std::int64_t Statement::integer() const {
  if (sqlite3_column_type(handle_.get(), column_) != SQLITE_INTEGER) refuse_column("is no integer");
  return sqlite3_column_int64(handle_.get(), column_);
}

std::string Statement::next_text() {
  if (sqlite3_column_type(handle_.get(), column_) != SQLITE_TEXT) refuse_column("is no text");
  const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(handle_.get(), column_));
  return std::string(bytes, static_cast<std::size_t>(sqlite3_column_bytes(handle_.get(), column_++)));
}

std::int32_t Statement::next_or_none() {
  if (sqlite3_column_type(handle_.get(), column_) == SQLITE_NULL) {
    ++column_;
    return kNone;
  }
  return next<std::int32_t>();
}

std::optional<std::int64_t> Statement::next_if_any() {
  if (sqlite3_column_type(handle_.get(), column_) == SQLITE_NULL) {
    ++column_;
    return std::nullopt;
  }
  return next<std::int64_t>();
}

void Statement::refuse_column(std::string_view why) const {
  const char* name = sqlite3_column_name(handle_.get(), column_);
  throw Contradiction(fmt::format("{} {}", name == nullptr ? "a column" : name, why));
}

Transaction::Transaction(Database& database, Kind kind) : database_(database) {
  database_.execute(kind == Kind::kWrite ? "BEGIN IMMEDIATE" : "BEGIN");
}

Transaction::~Transaction() {
  if (!database_.in_transaction()) return;
  try {
    database_.execute("ROLLBACK");
  } catch (const StoreError&) {
    // SQLite rolls back by itself when the connection closes or the file is next opened.
  }
}

void Transaction::commit() { database_.execute("COMMIT"); }

}  // namespace stowage::profiler
