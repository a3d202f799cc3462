// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <sqlite3.h>

#include "profiler/record.h"
#include "profiler/store.h"

namespace stowage::profiler {

/// Thrown where a file's rows contradict one another; `store.cpp` adds the file and the run.
class Contradiction : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// How long a process waits for another's transaction.
inline constexpr std::chrono::milliseconds kBusyTimeout{10'000};

/// A `StoreError` that came from SQLite.
class SqliteError : public StoreError {
 public:
  SqliteError(const std::string& text, int result_code) : StoreError(text), code(result_code & 0xff) {}

  int code;  ///< primary result code, such as SQLITE_BUSY
};

/// What an `errno` means, in lower case.
std::string system_text(int error);

class Statement;

/// Owns a connection. Errors throw `SqliteError`: "cannot VERB store 'PATH': CAUSE; MEND".
class Database {
 public:
  /// `flags` are those of `sqlite3_open_v2`. A path that starts with "file:" is an SQLite URI; to another, `parameters`
  /// of one may be given, such as "immutable=1".
  Database(const std::string& path, int flags, std::string_view parameters = "");

  const std::string& path() const { return path_; }
  /// What is being done, for error texts: "open", "read" or "write".
  void set_verb(std::string_view verb) const { verb_ = verb; }

  /// Runs statements that return nothing.
  void execute(const std::string& sql);
  Statement prepare(std::string_view sql) const;
  /// The first column of the first row.
  std::int64_t integer(std::string_view sql) const;
  std::string text(std::string_view sql) const;
  std::int64_t last_insert_id() const { return sqlite3_last_insert_rowid(handle_.get()); }
  bool read_only() const { return sqlite3_db_readonly(handle_.get(), "main") == 1; }
  bool in_transaction() const { return sqlite3_get_autocommit(handle_.get()) == 0; }

  /// Throws for the connection's last error, `code`; `sql` may be empty.
  [[noreturn]] void fail(int code, std::string_view sql) const;

 private:
  struct Close {
    void operator()(sqlite3* handle) const { sqlite3_close_v2(handle); }
  };

  std::string path_;
  mutable std::string_view verb_ = "open";
  std::unique_ptr<sqlite3, Close> handle_;
};

/// Owns a prepared statement; must not outlive its database.
class Statement {
 public:
  Statement(const Database& database, sqlite3_stmt* handle, std::string_view sql);

  /// Binds the values to the parameters, from the first. Texts must live until the next `bind`.
  template <class... Values>
  Statement& bind(const Values&... values) {
    sqlite3_reset(handle_.get());
    int parameter = 0;
    (bind_one(++parameter, values), ...);
    return *this;
  }
  /// Binds and runs a statement that returns no rows.
  template <class... Values>
  void run(const Values&... values) {
    bind(values...);
    step();
  }
  /// Moves to the next row; false at the end.
  bool step();

  /// Reads the row's columns in turn. A value of the wrong type or out of range throws `Contradiction`.
  template <std::integral Integer>
  Integer next() {
    const std::int64_t value = integer();
    if (!std::in_range<Integer>(value)) refuse_column("is out of range");
    ++column_;
    return static_cast<Integer>(value);
  }
  std::string next_text();
  /// NULL reads as `kNone`.
  std::int32_t next_or_none();
  /// NULL reads as nothing.
  std::optional<std::int64_t> next_if_any();

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* handle) const { sqlite3_finalize(handle); }
  };
  struct OrNull {
    std::int32_t value;
  };
  friend OrNull or_null(std::int32_t value);

  void bind_one(int parameter, std::int64_t value);
  void bind_one(int parameter, std::string_view value);
  void bind_one(int parameter, OrNull value);
  void bind_one(int parameter, std::optional<std::int64_t> value);
  std::int64_t integer() const;
  [[noreturn]] void refuse_column(std::string_view why) const;

  const Database& database_;
  std::unique_ptr<sqlite3_stmt, Finalize> handle_;
  std::string sql_;
  int column_ = 0;
};

/// Binds `kNone` as NULL.
inline Statement::OrNull or_null(std::int32_t value) { return {value}; }

/// Rolls back unless committed.
class Transaction {
 public:
  enum class Kind : std::uint8_t { kRead, kWrite };

  /// `kWrite` waits for other writers here, not at the first write.
  Transaction(Database& database, Kind kind);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  void commit();

 private:
  Database& database_;
};

}  // namespace stowage::profiler
