// What Prometheus reads of runs: series that exist only if their values are known.
#include "coordinator/service/run_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/coordinator/machine/fake_cluster.h"

namespace cadre::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RunMetricsTest : public MachineTest {
 protected:
  std::string Scrape() {
    Metrics metrics;
    CollectMachine(cluster_.machine(), cluster_.now(), metrics);
    return metrics.Text();
  }
};

TEST_F(RunMetricsTest, TokensAndMetricsOfARun) {
  v1::RunSpec spec = MakeSpec(1, 1, 5, 100);
  spec.mutable_model()->clear_input();
  spec.mutable_model()->mutable_tokens()->set_length(4);
  const std::string run = SubmitTo(1, 1, spec);
  EXPECT_THAT(Scrape(),
              AllOf(HasSubstr("cadre_run_version{run=\"run-1-test\"} 0\n"),
                    HasSubstr("cadre_run_obligations_late{run=\"run-1-test\"} 0\n"),
                    Not(HasSubstr("cadre_run_loss")), Not(HasSubstr("cadre_run_token")),
                    Not(HasSubstr("cadre_run_perplexity")), Not(HasSubstr("cadre_run_metric"))));
  cluster_.Run(absl::Seconds(4));
  FakeWorker& lead = cluster_.Lead(run, 0);
  lead.contributed = cluster_.ContributionOf(lead);
  lead.contributed->set_loss(0);
  (*lead.contributed->mutable_metrics()->mutable_mean())["grad/norm"] = 2.5;
  cluster_.Send(lead, *lead.contributed);
  ASSERT_EQ(cluster_.RunStatus(run).version(), 1U);
  EXPECT_THAT(Scrape(),
              AllOf(HasSubstr("cadre_run_loss{run=\"run-1-test\"} 0\n"),
                    HasSubstr("cadre_run_tokens_total{run=\"run-1-test\"} 640\n"),
                    HasSubstr("cadre_run_perplexity{run=\"run-1-test\"} 1\n"),
                    HasSubstr("cadre_run_tokens_per_second{run=\"run-1-test\"} "),
                    HasSubstr("cadre_run_metric{run=\"run-1-test\",metric=\"grad/norm\"} 2.5\n")));
}

// The alert for rounds without progress uses it.
TEST_F(RunMetricsTest, FurthestStepOfTheGroups) {
  const std::string run = SubmitTo(1, 2, MakeSpec(2, 1, 5, 100));
  EXPECT_THAT(Scrape(), HasSubstr("cadre_run_furthest_step{run=\"run-1-test\"} 0\n"));
  v1::Progress progress;
  *progress.mutable_place() = cluster_.Lead(run, 1).place();
  progress.set_step(3);
  cluster_.Send(cluster_.Lead(run, 1), progress);
  EXPECT_THAT(Scrape(), HasSubstr("cadre_run_furthest_step{run=\"run-1-test\"} 3\n"));
}

}  // namespace
}  // namespace cadre::testing
