// Which queries for plans share a search: those of one run whose differences are noise.
#include "coordinator/cluster/plan_searches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/base/expect.h"

namespace cadre {
namespace {

using Change = std::function<void(PlanQuery&)>;

// Two ranks on one host and one on another, all of one kind, with links and layer times.
PlanQuery Query() {
  PlanQuery query;
  query.spec.mutable_cluster()->set_device(v1::Cluster::CPU);
  for (const char* host : {"a", "a", "b"}) {
    query.ranks.push_back({.host = host, .device = "cpu", .cores = 4, .memory_bytes = 800});
  }
  query.link =
      Parse<v1::LinkProfile>("kind: TCP alpha: 1e-5 beta: 1e-9 gamma: 1e-10 processor: 1e-9");
  query.inside = Parse<v1::LinkProfile>("kind: SHARED_MEMORY alpha: 1e-6 beta: 1e-10");
  query.times.push_back(Parse<v1::LayerTimesRecord>(R"(
      device: "cpu" update_seconds: 1e-9 copy_seconds: 2e-9
      times { time { layer: "fc1" samples: 16 forward: 1 backward: 2 }
              time { layer: "fc2" samples: 16 forward: 3 backward: 4 } })"));
  return query;
}

// The searches of one run.
struct RunSearches {
  // Whether the query begins one.
  bool Begins(PlanQuery query) {
    all.PlansFor(run, /*epoch=*/1, std::move(query), /*urgent=*/true, out).IgnoreError();
    return !out.Take().empty();
  }

  v1::RunRecord run = Parse<v1::RunRecord>("run: 'run-1' lineage: 'run-1.0'");
  Outbox out;
  PlanSearches all;
};

// Whether a query with this change has a search beside that of the query without it.
bool NeedsASearch(const Change& change) {
  RunSearches searches;
  EXPECT_TRUE(searches.Begins(Query()));
  PlanQuery changed = Query();
  change(changed);
  return searches.Begins(changed);
}

TEST(PlanSearchesTest, EqualQueriesShareASearch) {
  EXPECT_FALSE(NeedsASearch([](PlanQuery&) {}));
  EXPECT_FALSE(NeedsASearch([](PlanQuery& query) { query.spec.set_name("other"); }))
      << "queries of one run have one specification";
}

TEST(PlanSearchesTest, ResourcesMustBeEqual) {
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) { query.ranks.pop_back(); }));
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) { query.ranks.push_back(query.ranks.back()); }));
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) { query.ranks[1].cores = 5; }));
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) { query.ranks[2].memory_bytes = 801; }));
  EXPECT_TRUE(NeedsASearch(
      [](PlanQuery& query) { query.spec.mutable_cluster()->set_device(v1::Cluster::CUDA); }));
}

TEST(PlanSearchesTest, RanksMustShareHostsInTheSameWay) {
  EXPECT_FALSE(NeedsASearch([](PlanQuery& query) {
    query.ranks[0].host = query.ranks[1].host = "c";
    query.ranks[2].host = "a";
  })) << "names of hosts do not matter";
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) { query.ranks[2].host = "a"; })) << "on one host";
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) { query.ranks[1].host = "c"; })) << "on three";
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) { query.ranks[1].host = "b"; })) << "the others";
}

TEST(PlanSearchesTest, LinksMayDifferByAQuarter) {
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) { query.link.reset(); }));
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) { query.inside.reset(); }));
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) { query.link->set_kind(v1::LinkProfile::NCCL); }));
  using Number = void (*)(v1::LinkProfile&, double);
  for (const Number set :
       {Number([](v1::LinkProfile&l, double f) { l.set_alpha(1e-5 * f); }),
        Number([](v1::LinkProfile&l, double f) { l.set_beta(1e-9 * f); }),
        Number([](v1::LinkProfile&l, double f) { l.set_gamma(1e-10 * f); }),
        Number([](v1::LinkProfile&l, double f) { l.set_processor(1e-9 * f); })}) {
    const auto differs = [set](double factor) {
      return NeedsASearch([=](PlanQuery& query) { set(*query.link, factor); });
    };
    EXPECT_FALSE(differs(1.24));
    EXPECT_FALSE(differs(0.81));
    EXPECT_TRUE(differs(1.26));
    EXPECT_TRUE(differs(0.79));
    EXPECT_TRUE(differs(0)) << "unknown";
  }
}

TEST(PlanSearchesTest, LayerTimesMayDifferByATenthOfTheirSum) {
  const auto forward = [](double seconds) {
    return NeedsASearch([=](PlanQuery& query) {
      query.times[0].mutable_times()->mutable_time(0)->set_forward(seconds);
    });
  };
  EXPECT_FALSE(forward(2.1)) << "by 1.1 of 11.1 seconds";
  EXPECT_TRUE(forward(2.2)) << "by 1.2 of 11.2 seconds";
  EXPECT_FALSE(forward(0.1));
  EXPECT_TRUE(forward(0.05));
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) {
    for (v1::LayerTime& time : *query.times[0].mutable_times()->mutable_time()) {
      time.set_forward(time.forward() + 0.3);
      time.set_backward(time.backward() - 0.3);
    }
  })) << "differences do not cancel each other";
}

TEST(PlanSearchesTest, TimesMustBeOfTheSameParts) {
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) { query.times[0].set_device("other"); }));
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) { query.times.clear(); }));
  EXPECT_TRUE(NeedsASearch([](PlanQuery& query) { query.times.push_back(query.times[0]); }));
  EXPECT_TRUE(NeedsASearch(
      [](PlanQuery& query) { query.times[0].mutable_times()->mutable_time()->RemoveLast(); }));
  EXPECT_TRUE(NeedsASearch(
      [](PlanQuery& query) { query.times[0].mutable_times()->mutable_time(1)->set_layer("fc3"); }));
  EXPECT_FALSE(NeedsASearch([](PlanQuery& query) {
    query.times[0].mutable_times()->mutable_time()->SwapElements(0, 1);
  })) << "in any order";
  for (const double factor : {1.24, 1.26}) {
    EXPECT_EQ(
        NeedsASearch([=](PlanQuery& query) { query.times[0].set_update_seconds(1e-9 * factor); }),
        factor > 1.25);
    EXPECT_EQ(
        NeedsASearch([=](PlanQuery& query) { query.times[0].set_copy_seconds(2e-9 * factor); }),
        factor > 1.25);
  }
}

TEST(PlanSearchesTest, SearchesAreThoseOfOneRunAndLineage) {
  RunSearches searches;
  EXPECT_TRUE(searches.Begins(Query()));
  EXPECT_TRUE(searches.all.IsAwaited("run-1"));
  EXPECT_FALSE(searches.all.IsAwaited("run-2"));
  searches.run.set_lineage("run-1.1");
  EXPECT_TRUE(searches.Begins(Query())) << "the run was rebuilt";
  searches.run.set_run("run-2");
  EXPECT_TRUE(searches.Begins(Query()));
  EXPECT_FALSE(searches.Begins(Query()));
}

TEST(PlanSearchesTest, FirstAnswerOfASearchIsKept) {
  RunSearches searches;
  const auto plans = [&] {
    return searches.all.PlansFor(searches.run, 1, Query(), true, searches.out);
  };
  EXPECT_THAT(plans(), IsError(absl::StatusCode::kUnavailable, "searching a plan"));
  const std::vector<Action> actions = searches.out.Take();
  ASSERT_EQ(actions.size(), 1U);
  PlansFound found{.run = "run-1",
                   .key = std::get<SearchPlans>(actions[0]).key,
                   .plans = absl::InvalidArgumentError("no plan")};
  searches.all.OnFound(found);
  EXPECT_FALSE(searches.all.IsAwaited("run-1"));
  found.plans = std::vector<GroupPlan>(1);
  searches.all.OnFound(found);
  EXPECT_THAT(plans(), IsError(absl::StatusCode::kInvalidArgument, "no plan"));
  found.key = "unknown";
  searches.all.OnFound(found);
  EXPECT_TRUE(searches.out.Take().empty());
}

}  // namespace
}  // namespace cadre
