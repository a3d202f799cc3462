// SPDX-License-Identifier: Apache-2.0
#include "profiler/store.h"

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>

#include "tests/support/sample_run.h"

namespace stowage::profiler {
namespace {

using testing::Optional;

constexpr auto kReadWrite = Store::Mode::kReadWrite;

class StoreTest : public StoreFolder {};

TEST(Store, RunsComeBackAsTheyWere) {
  Store store(":memory:", kReadWrite);
  const profiler::Run run = sample_run();
  const std::int64_t id = store.write_run(run);
  EXPECT_EQ(store.read_run(id), run);
  EXPECT_EQ(store.note(), "");
}

TEST(Store, PlansComeBackAsTheyWere) {
  Store store(":memory:", kReadWrite);
  const std::int64_t id = store.write_run(sample_run());
  EXPECT_EQ(store.read_plan(id), std::nullopt);
  store.write_plan(id, sample_plan());
  EXPECT_THAT(store.read_plan(id), Optional(sample_plan()));
}

TEST(Store, KeepsEmptyRunsOddTextAndExtremes) {
  Store store(":memory:", kReadWrite);
  const profiler::Run empty;
  EXPECT_EQ(store.read_run(store.write_run(empty)), empty);

  profiler::Run odd = sample_run();
  odd.name = std::string("quote ' \" nul \0 tab \t \xE2\x86\x92", 22);
  odd.complete = false;
  odd.dropped_records = INT64_MAX;
  odd.ops[0].start_ns = -5;
  odd.tensors[0].size_bytes = INT64_MAX;
  EXPECT_EQ(store.read_run(store.write_run(odd)), odd);
}

TEST(Store, ANewPlanTakesThePlaceOfTheOld) {
  Store store(":memory:", kReadWrite);
  const std::int64_t id = store.write_run(sample_run());
  store.write_plan(id, sample_plan());
  PlanRecord shorter = sample_plan();
  shorter.slots.pop_back();
  shorter.points.clear();
  shorter.peak_bytes = 1'663;
  store.write_plan(id, shorter);
  EXPECT_THAT(store.read_plan(id), Optional(shorter));
}

TEST(Store, FindsTheNewestPlanOfAKey) {
  Store store(":memory:", kReadWrite);
  profiler::Run older = sample_run();
  profiler::Run newer = sample_run();
  newer.execution = 3;
  profiler::Run unplanned = sample_run();
  unplanned.execution = 4;
  store.write_plan(store.write_run(older), sample_plan());
  store.write_plan(store.write_run(newer), sample_plan());
  store.write_run(unplanned);
  EXPECT_THAT(store.find_plan(sample_run().key), Optional(PlannedRun{newer, sample_plan()}));
}

TEST(Store, FindsNoPlanForAnotherKey) {
  Store store(":memory:", kReadWrite);
  store.write_plan(store.write_run(sample_run()), sample_plan());
  for (std::string RunKey::*part :
       {&RunKey::graph_hash, &RunKey::signature, &RunKey::device, &RunKey::torch_version, &RunKey::rules}) {
    RunKey key = sample_run().key;
    key.*part += "x";
    EXPECT_EQ(store.find_plan(key), std::nullopt);
  }
}

TEST(Store, StepsComeBackAsTheyWere) {
  Store store(":memory:", kReadWrite);
  const std::int64_t id = store.write_run(sample_step());
  store.write_plan(id, sample_step_plan());
  EXPECT_EQ(store.read_run(id), sample_step());
  EXPECT_THAT(store.read_plan(id), Optional(sample_step_plan()));
}

TEST(Store, ListsTheNewestPlanOfEachSignatureNewestFirst) {
  Store store(":memory:", kReadWrite);
  const auto write = [&](const std::string& signature, void (*change)(profiler::Run&), bool planned) {
    profiler::Run run = sample_step();
    run.key.signature = signature;
    change(run);
    const std::int64_t id = store.write_run(run);
    if (planned) store.write_plan(id, sample_step_plan());
    return id;
  };
  const auto as_it_is = [](profiler::Run&) {};
  write("a", as_it_is, true);
  const std::int64_t b = write("b", as_it_is, true);
  const std::int64_t newest_a = write("a", as_it_is, true);
  write("a", as_it_is, false);
  write(
      "c", [](profiler::Run& run) { run.key.graph_hash = "step:20"; }, true);
  write(
      "d", [](profiler::Run& run) { run.key.device = "GPU"; }, true);
  write(
      "e", [](profiler::Run& run) { run.key.torch_version = "2.12.0"; }, true);
  write(
      "f", [](profiler::Run& run) { run.key.rules = "2"; }, true);
  write(
      "g", [](profiler::Run& run) { run.complete = false; }, true);
  write(
      "h", [](profiler::Run& run) { run.dropped_records = 1; }, true);
  EXPECT_THAT(store.list_plans(sample_step().key, 9), testing::ElementsAre(newest_a, b));
  EXPECT_THAT(store.list_plans(sample_step().key, 1), testing::ElementsAre(newest_a));
}

TEST(Store, FindsNoPlanFromALossyOrBrokenOffRun) {
  Store store(":memory:", kReadWrite);
  profiler::Run lossy = sample_run();
  lossy.dropped_records = 1;
  profiler::Run partial = sample_run();
  partial.complete = false;
  store.write_plan(store.write_run(lossy), sample_plan());
  store.write_plan(store.write_run(partial), sample_plan());
  EXPECT_EQ(store.find_plan(sample_run().key), std::nullopt);
}

TEST_F(StoreTest, FindsPlansByIndexOnly) {
  Store(path(), kReadWrite);
  tamper(path(), "DROP INDEX runs_by_key");
  EXPECT_THAT(store_error([&] { Store(path()).find_plan(sample_run().key); }), testing::HasSubstr("no such index"));
}

TEST_F(StoreTest, SurvivesTheProcess) {
  std::int64_t id = 0;
  {
    Store store(path(), kReadWrite);
    id = store.write_run(sample_run());
    store.write_plan(id, sample_plan());
  }
  const Store store(path());
  EXPECT_EQ(store.path(), path());
  EXPECT_EQ(store.note(), "");
  EXPECT_EQ(store.read_run(id), sample_run());
  EXPECT_THAT(store.find_plan(sample_run().key), Optional(PlannedRun{sample_run(), sample_plan()}));
}

TEST_F(StoreTest, PathsAreNotTakenForUris) {
  const std::string odd = path("a?mode=memory#b%41.db");
  Store(odd, kReadWrite).write_run(sample_run());
  EXPECT_TRUE(std::filesystem::exists(odd));
  EXPECT_EQ(Store(odd).read_run(1), sample_run());
}

TEST_F(StoreTest, SaysWhichStowageWroteARun) {
  Store(path(), kReadWrite).write_run(sample_run());
  EXPECT_THAT(tamper(path(), "SELECT stowage_version FROM runs"), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST_F(StoreTest, ViewsAnswerTheCommonQuestions) {
  Store store(path(), kReadWrite);
  store.write_plan(store.write_run(sample_run()), sample_plan());
  // Inputs 384; h and the workspace make 384 + 512 + 768 in op 0, at event 1.
  EXPECT_EQ(tamper(path(), "SELECT format('%d %d %d', event, op, live_bytes) FROM peak"), "1 0 1664");
  EXPECT_EQ(tamper(path(), "SELECT group_concat(live_bytes, ' ') FROM (SELECT * FROM timeline ORDER BY event)"),
            "384 896 1664 896 1408 896 900 388");
  EXPECT_EQ(tamper(path(),
                   "SELECT group_concat(tensor || ':' || size_bytes, ' ') FROM "
                   "(SELECT * FROM live_at_peak ORDER BY size_bytes DESC)"),
            "4:768 3:512 1:256 0:128 2:0");
  EXPECT_EQ(tamper(path(),
                   "SELECT format('%d %d %d %d', allocate_op, free_op, first_use_op, last_use_op) "
                   "FROM lifetimes WHERE name = 'a'"),
            "1 2 1 2");
  // As planned, h ends (384) where a takes its memory (896).
  EXPECT_EQ(tamper(path(), "SELECT group_concat(live_bytes, ' ') FROM (SELECT * FROM planned_timeline ORDER BY event)"),
            "384 896 1664 896 384 896 900 388");
  EXPECT_EQ(tamper(path(), "SELECT format('%d %d', tensor, change_bytes) FROM planned_timeline WHERE what = 'reuse'"),
            "3 -512");
  EXPECT_EQ(tamper(path(), "SELECT format('%d %d %d', event, op, live_bytes) FROM planned_peak"), "1 0 1664");
  EXPECT_EQ(tamper(path(),
                   "SELECT group_concat(tensor || ':' || size_bytes, ' ') FROM "
                   "(SELECT * FROM live_at_planned_peak ORDER BY size_bytes DESC)"),
            "4:768 3:512 1:256 0:128 2:0");
}

TEST_F(StoreTest, ViewsShowWhatAStepLeavesToTheNextWhereItEnds) {
  Store store(path(), kReadWrite);
  store.write_plan(store.write_run(sample_step()), sample_step_plan());
  // The last step's g (2048) is there from the start, and goes at event 4, after the next g has come.
  constexpr char kLives[] = "2048 3072 5120 7168 6144 4096";
  for (const std::string planned : {"", "planned_"}) {
    EXPECT_EQ(tamper(path(), "SELECT group_concat(live_bytes, ' ') FROM (SELECT * FROM " + planned +
                                 "timeline ORDER BY event)"),
              kLives);
    EXPECT_EQ(tamper(path(), "SELECT format('%d %d %d', event, op, live_bytes) FROM " + planned + "peak"), "2 1 7168");
    // Twice 2048 of g, and the rest once.
    EXPECT_EQ(tamper(path(), "SELECT group_concat(tensor || ':' || size_bytes, ' ') FROM (SELECT * FROM live_at_" +
                                 planned + "peak ORDER BY tensor)"),
              "0:1024 1:4096 2:2048");
  }
  EXPECT_EQ(tamper(path(),
                   "SELECT format('%d %s %d %d', allocate_op, coalesce(free_op, '-'), next_free_op, "
                   "next_free_event) FROM lifetimes WHERE tensor = 1"),
            "1 - 1 4");
}

TEST_F(StoreTest, AFreeAtAnAllocationsEventComesFirst) {
  profiler::Run run = sample_step();
  run.carried[0].free_event = 2;
  Store(path(), kReadWrite).write_run(run);
  EXPECT_EQ(
      tamper(path(), "SELECT group_concat(live_bytes, ' ') FROM (SELECT * FROM timeline ORDER BY event, what DESC)"),
      "2048 3072 5120 3072 5120 4096");
}

TEST_F(StoreTest, ViewsTellWhatTheDeviceDid) {
  Store(path(), kReadWrite).write_run(sample_run());
  const auto rows = [&](const std::string& columns, const std::string& view) {
    return tamper(path(), "SELECT group_concat(row, ', ') FROM (SELECT format(" + columns + ") AS row FROM " + view +
                              " WHERE run_id = 1)");
  };
  // CUPTI saw two of four allocations; a was asked of the driver in another size.
  EXPECT_EQ(rows("'%d %s op %d: %d %d', allocation, name, op, allocator_bytes, cupti_bytes", "size_sources"),
            "2 a op 1: 512 768, 3 s op 2: 4 4");
  // A kernel in op 0; a kernel and a fill in op 3; what no op launched is not there.
  EXPECT_EQ(rows("'%d %s: %d %d %d %d', op, name, kernels, kernel_ns, copies, copy_ns", "op_device_time"),
            "0 h: 1 300 0 0, 3 w.1: 1 20 1 5");
}

TEST_F(StoreTest, RefusesToWriteWhatContradictsItself) {
  Store store(path(), kReadWrite);
  profiler::Run run = sample_run();
  run.uses[0].op = 4;
  EXPECT_EQ(store_error([&] { store.write_run(run); }),
            "cannot write run 'step' to store '" + path() + "': use 0 names op 4 of 4; please report this");

  const std::int64_t id = store.write_run(sample_run());
  PlanRecord plan = sample_plan();
  store.write_plan(id, plan);
  plan.order = {0, 1, 2, 2};
  EXPECT_EQ(store_error([&] { store.write_plan(id, plan); }),
            "cannot write the plan of run 1 to store '" + path() + "': step 3 runs op 2 again; please report this");
  EXPECT_THAT(store.read_plan(id), Optional(sample_plan()));  // the failed write left the old one
  EXPECT_EQ(tamper(path(), "SELECT count(*) FROM runs"), "1");
}

TEST_F(StoreTest, AFailedWriteLeavesTheFileAsItWas) {
  Store store(path(), kReadWrite);
  store.write_run(sample_run());
  profiler::Run run = sample_run();
  run.allocations[1].index = 0;  // found by the file's own constraint, in the last table
  EXPECT_EQ(
      store_error([&] { store.write_run(run); }),
      "cannot write store '" + path() +
          "': UNIQUE constraint failed: allocations.run_id, allocations.op, allocations.index_in_op in \"INSERT "
          "INTO allocations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)\"; the records contradict one another; "
          "please report this");
  EXPECT_EQ(tamper(path(), "SELECT count(*) FROM runs"), "1");
  EXPECT_EQ(store.read_run(store.write_run(sample_run())), sample_run());
}

TEST_F(StoreTest, NamesARunThatIsNotThere) {
  Store store(path(), kReadWrite);
  EXPECT_EQ(store_error([&] { store.read_run(7); }),
            "cannot read run 7 of store '" + path() + "': it has no such run; list its runs with 'stowage info'");
  EXPECT_EQ(store_error([&] { store.write_plan(7, sample_plan()); }),
            "cannot write the plan of run 7 to store '" + path() + "': the store has no such run; please report this");
  EXPECT_EQ(store.read_plan(7), std::nullopt);
}

TEST_F(StoreTest, AReaderDoesNotWrite) {
  Store(path(), kReadWrite);
  Store store(path());
  EXPECT_EQ(store_error([&] { store.write_run(sample_run()); }),
            "cannot write store '" + path() + "': it is open for reading; open it for writing");
}

// --- migrations ---------------------------------------------------------------------------------------------------

/// The "=== version N" section of schema.sql.
std::string schema_section(int version) {
  std::ifstream file(STOWAGE_SCHEMA);
  std::stringstream text;
  text << file.rdbuf();
  const std::string schema = text.str();
  const auto begin = schema.find("\n-- === version " + std::to_string(version));
  const auto end = schema.find("\n-- === version " + std::to_string(version + 1));
  EXPECT_NE(begin, schema.npos);
  return schema.substr(begin, end - begin);
}

constexpr char kDumpSchema[] =
    "SELECT group_concat(name || coalesce(sql, ''), char(10)) FROM (SELECT * FROM sqlite_schema ORDER BY name)";

TEST_F(StoreTest, MigratesAnOlderFileAndKeepsItsRuns) {
  tamper(path(), schema_section(1) +
                     "INSERT INTO runs VALUES "
                     "(5, 'old', 'hash', '()', 'cpu', '2.11.0', '0.0.9', 'steady_clock', 1, 1, 0, 1, 2, 3, 'graph')");
  EXPECT_EQ(
      store_error([&] { Store store(path()); }),
      "cannot open store '" + path() + "': schema 1, this build reads 6; open it for writing once, which migrates it");

  Store store(path(), kReadWrite);
  EXPECT_EQ(store.read_run(5).name, "old");
  PlanRecord plan;
  plan.order_status = plan.layout_status = "optimal";
  store.write_plan(5, plan);
  EXPECT_EQ(store.read_plan(5), plan);
  Store(path("new.db"), kReadWrite);
  EXPECT_EQ(tamper(path(), kDumpSchema), tamper(path("new.db"), kDumpSchema));
  EXPECT_EQ(tamper(path(), "PRAGMA user_version"), "6");
}

TEST_F(StoreTest, PlansOfVersion2StayReadableAndAreFollowedNoMore) {
  tamper(path(),
         schema_section(1) + schema_section(2) +
             "INSERT INTO runs VALUES "
             "(1, 'old', '9f86d081', '(Float[4, 8])', 'cpu', '2.11.0', '0.0.9', 'steady_clock', 1, 1, 0, 1, 2, 3, '');"
             "INSERT INTO ops VALUES (1, 0, 'a', 'aten::relu', '', '', 0, 1);"
             "INSERT INTO tensors VALUES (1, 0, 'a', 'intermediate', 64, '', '');"
             "INSERT INTO allocations VALUES (1, 0, 0, 0, 0, 64, 64, 0, 0, 0, 1, 'allocator');"
             "INSERT INTO plans VALUES (1, 64, 64, 64, 'optimal', 64, 64, 'optimal', 5, '');"
             "INSERT INTO plan_order VALUES (1, 0, 0);"
             "INSERT INTO slots VALUES (1, 0, 0, 0, 64);"
             "INSERT INTO points VALUES (1, 0, 'place', 0, 0), (1, 1, 'free', 0, 0)");
  Store store(path(), kReadWrite);
  const profiler::Run run = store.read_run(1);
  EXPECT_EQ(run.key.rules, "");
  EXPECT_EQ(run.reuses, std::vector<ReuseRecord>{});
  const std::optional<PlanRecord> plan = store.read_plan(1);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->points, (std::vector<PointRecord>{{.kind = PointKind::kPlace, .op = 0, .tensor = 0},
                                                    {.kind = PointKind::kFree, .op = 0, .tensor = 0}}));
  EXPECT_EQ(tamper(path(), "SELECT group_concat(live_bytes, ' ') FROM (SELECT * FROM planned_timeline ORDER BY event)"),
            "0 64 0");
  RunKey key = run.key;
  key.rules = "2";
  EXPECT_EQ(store.find_plan(key), std::nullopt);
}

TEST_F(StoreTest, PlansOfVersion3AreStillFollowed) {
  tamper(path(), schema_section(1) + schema_section(2) + schema_section(3) +
                     "INSERT INTO runs VALUES (1, 'old', '9f86d081', '(Float[4, 8])', 'cpu', '2.11.0', '0.1.0', "
                     "'steady_clock', 1, 1, 0, 1, 2, 3, '', '2');"
                     "INSERT INTO plans VALUES (1, 64, 64, 64, 'optimal', 64, 64, 'optimal', 5, '')");
  Store store(path(), kReadWrite);
  const std::optional<PlannedRun> found = store.find_plan(sample_run().key);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->run.alignment_bytes, 64);
  EXPECT_EQ(found->run.size_mismatches, 0);
  EXPECT_EQ(found->plan.cut_bytes, 0);
  EXPECT_EQ(found->run.device_memory, std::vector<DeviceMemoryRecord>{});
  const std::int64_t id = store.write_run(sample_run());
  EXPECT_EQ(store.read_run(id), sample_run());
}

TEST_F(StoreTest, PlansOfVersion4AreStillFollowed) {
  tamper(path(), schema_section(1) + schema_section(2) + schema_section(3) + schema_section(4) +
                     "INSERT INTO runs VALUES (1, 'old', '9f86d081', '(Float[4, 8])', 'cpu', '2.11.0', '0.1.0', "
                     "'steady_clock', 1, 1, 0, 1, 2, 64, '', '2', 64, 0);"
                     "INSERT INTO ops VALUES (1, 0, 'a', 'aten::relu', '', '', 0, 1);"
                     "INSERT INTO tensors VALUES (1, 0, 'a', 'intermediate', 64, '', '');"
                     "INSERT INTO allocations VALUES (1, 0, 0, 0, 0, 64, 64, 0, 0, 0, 1, 'allocator');"
                     "INSERT INTO plans VALUES (1, 64, 64, 64, 'optimal', 64, 64, 'optimal', 5, '', 0);"
                     "INSERT INTO plan_order VALUES (1, 0, 0);"
                     "INSERT INTO slots VALUES (1, 0, 0, 0, 64);"
                     "INSERT INTO points VALUES (1, 0, 'place', 0, 0, NULL), (1, 1, 'free', 0, 0, NULL)");
  Store store(path(), kReadWrite);
  const std::optional<PlannedRun> found = store.find_plan(sample_run().key);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->run.kind, RunKind::kGraph);
  EXPECT_EQ(found->run.allocations[0].lane, 0);
  EXPECT_EQ(found->plan.slots, (std::vector<SlotRecord>{{.tensor = 0, .offset_bytes = 0, .size_bytes = 64}}));
  EXPECT_EQ(tamper(path(), "SELECT group_concat(live_bytes, ' ') FROM (SELECT * FROM planned_timeline ORDER BY event)"),
            "0 64 0");
  EXPECT_EQ(tamper(path(), "SELECT group_concat(live_bytes, ' ') FROM (SELECT * FROM timeline ORDER BY event)"),
            "0 64 0");
}

TEST_F(StoreTest, PlansOfVersion5AreStillFollowed) {
  tamper(path(), schema_section(1) + schema_section(2) + schema_section(3) + schema_section(4) + schema_section(5) +
                     "INSERT INTO runs VALUES (1, 'old', '9f86d081', '(Float[4, 8])', 'cpu', '2.11.0', '0.1.0', "
                     "'steady_clock', 1, 1, 0, 1, 2, 64, '', '2', 64, 0, 'graph');"
                     "INSERT INTO ops VALUES (1, 0, 'a', 'aten::relu', '', '', 0, 1);"
                     "INSERT INTO plans VALUES (1, 64, 64, 64, 'optimal', 64, 64, 'optimal', 5, '', 0);"
                     "INSERT INTO plan_order VALUES (1, 0, 0)");
  Store store(path(), kReadWrite);
  const std::optional<PlannedRun> found = store.find_plan(sample_run().key);
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->run.ops[0].repeatable);
  EXPECT_EQ(found->run.ops[0].program_op, kNone);
  EXPECT_EQ(found->plan.budget, std::nullopt);
}

TEST_F(StoreTest, AMigrationThatFailsLeavesTheFileAsItWas) {
  tamper(path(), schema_section(1) + "CREATE VIEW planned_peak AS SELECT 1");
  const std::string before = tamper(path(), kDumpSchema);
  EXPECT_EQ(store_error([&] { Store store(path(), kReadWrite); }),
            "cannot open store '" + path() +
                "': view planned_peak already exists; its tables are not those of its schema: move it away and "
                "profile again");
  EXPECT_EQ(tamper(path(), kDumpSchema), before);
  EXPECT_EQ(tamper(path(), "PRAGMA user_version"), "1");
}

TEST_F(StoreTest, RefusesANewerSchema) {
  Store(path(), kReadWrite);
  tamper(path(), "PRAGMA user_version = 7");
  const std::string expected =
      "cannot open store '" + path() +
      "': schema 7, this build reads 6; profile again into another file or use a newer stowage";
  EXPECT_EQ(store_error([&] { Store store(path()); }), expected);
  EXPECT_EQ(store_error([&] { Store store(path(), kReadWrite); }), expected);
}

}  // namespace
}  // namespace stowage::profiler
