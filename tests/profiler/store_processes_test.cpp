// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include "profiler/store.h"
#include "tests/support/sample_run.h"

namespace stowage::profiler {
namespace {

using namespace std::chrono_literals;

constexpr auto kReadWrite = Store::Mode::kReadWrite;

class SharedStore : public StoreFolder {
 protected:
  /// Runs `act` in a process of its own, which exits with 0 unless it throws.
  static pid_t in_process(const std::function<void()>& act) {
    const pid_t process = fork();
    if (process != 0) return process;
    try {
      act();
    } catch (const std::exception& error) {
      fprintf(stderr, "%s\n", error.what());
      _exit(1);
    }
    _exit(0);
  }

  static int wait_for(pid_t process) {
    int status = 0;
    EXPECT_EQ(waitpid(process, &status, 0), process);
    return status;
  }
};

TEST_F(SharedStore, ProcessesMakeAndFillOneFileTogether) {
  constexpr int kProcesses = 4;
  constexpr int kRuns = 10;
  std::vector<pid_t> processes;
  for (int process = 0; process < kProcesses; ++process) {
    processes.push_back(in_process([&] {
      Store store(path(), kReadWrite);
      if (!store.note().empty()) throw std::runtime_error(store.note());
      for (int round = 0; round < kRuns; ++round) {
        profiler::Run run = sample_run();
        run.execution = process;
        const std::int64_t id = store.write_run(run);
        store.write_plan(id, sample_plan());
        if (store.read_run(id) != run) throw std::runtime_error("another process's run");
      }
    }));
  }
  for (const pid_t process : processes) EXPECT_EQ(wait_for(process), 0);

  const Store store(path());
  std::array<int, kProcesses> runs_of{};
  for (std::int64_t id = 1; id <= kProcesses * kRuns; ++id) {
    profiler::Run expected = sample_run();
    expected.execution = store.read_run(id).execution;
    EXPECT_EQ(store.read_run(id), expected);
    EXPECT_EQ(store.read_plan(id), sample_plan());
    ++runs_of.at(static_cast<std::size_t>(expected.execution));
  }
  EXPECT_THAT(runs_of, testing::Each(kRuns));
}

TEST_F(SharedStore, AReaderSeesOneStateWhileAnotherProcessWrites) {
  Store writer(path(), kReadWrite);
  const std::int64_t id = writer.write_run(sample_run());
  PlanRecord shorter = sample_plan();
  shorter.points.clear();
  writer.write_plan(id, shorter);
  const pid_t process = in_process([&] {
    Store store(path(), kReadWrite);
    for (int round = 0; round < 50; ++round) store.write_plan(id, round % 2 == 0 ? sample_plan() : shorter);
  });
  const Store reader(path());
  for (int round = 0; round < 50; ++round) {
    EXPECT_THAT(reader.read_plan(id), testing::Optional(testing::AnyOf(sample_plan(), shorter)));
  }
  EXPECT_EQ(wait_for(process), 0);
}

TEST_F(SharedStore, AWriterKilledInATransactionLeavesAReadableFile) {
  { Store(path(), kReadWrite).write_run(sample_run()); }
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t process = in_process([&] {
    // What write_run does, stopped half way, with pages already in the log.
    sqlite3* database = nullptr;
    sqlite3_open(path().c_str(), &database);
    sqlite3_exec(
        database,
        "PRAGMA cache_size = 1; BEGIN IMMEDIATE;"
        "INSERT INTO runs SELECT id + 1, name, graph_hash, signature, device, torch_version, stowage_version, "
        "clock, created_unix_ns, execution, dropped_records, complete, duration_ns, peak_bytes, graph_text, rules, "
        "alignment_bytes, size_mismatches, kind FROM runs;"
        "WITH RECURSIVE n (i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
        "INSERT INTO ops SELECT 2, i, 'name', 'kind', '', '', 0, 0, 0, NULL FROM n",
        nullptr, nullptr, nullptr);
    const char go = sqlite3_get_autocommit(database) == 0 ? 'y' : 'n';
    if (write(ready[1], &go, 1) != 1) _exit(1);
    pause();
  });
  char go = 0;
  ASSERT_EQ(read(ready[0], &go, 1), 1);
  ASSERT_EQ(go, 'y');
  ASSERT_GT(std::filesystem::file_size(path() + "-wal"), 100'000U);
  ASSERT_EQ(kill(process, SIGKILL), 0);
  EXPECT_EQ(WTERMSIG(wait_for(process)), SIGKILL);

  EXPECT_EQ(Store(path()).read_run(1), sample_run());
  EXPECT_THAT(store_error([&] { Store(path()).read_run(2); }), testing::HasSubstr("it has no such run"));
  EXPECT_EQ(Store(path(), kReadWrite).write_run(sample_run()), 2);  // the lock died with it
}

TEST_F(SharedStore, AWriterKilledAtAnyMomentLeavesWholeRuns) {
  Store(path(), kReadWrite);
  for (int round = 0; round < 8; ++round) {
    const pid_t process = in_process([&] {
      Store store(path(), kReadWrite);
      while (true) store.write_plan(store.write_run(sample_run()), sample_plan());
    });
    std::this_thread::sleep_for(20ms + round * 5ms);
    kill(process, SIGKILL);
    wait_for(process);

    const Store store(path());
    const auto runs = std::stoll("0" + tamper(path(), "SELECT max(id) FROM runs"));
    for (std::int64_t id = std::max<std::int64_t>(1, runs - 3); id <= runs; ++id) {
      EXPECT_EQ(store.read_run(id), sample_run());
      EXPECT_THAT(store.read_plan(id), testing::AnyOf(std::nullopt, sample_plan()));
    }
  }
  EXPECT_EQ(tamper(path(), "PRAGMA integrity_check"), "ok");
  EXPECT_NE(tamper(path(), "SELECT count(*) FROM runs"), "0");
}

}  // namespace
}  // namespace stowage::profiler
