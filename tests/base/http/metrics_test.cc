// The text format of metrics.
#include "base/http/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace cadre {
namespace {

using ::testing::HasSubstr;

TEST(MetricsTest, ValuesOfANameAreTogether) {
  Metrics metrics;
  metrics.Gauge("cadre_a", "A.", 1, {{"x", "1"}});
  metrics.Counter("cadre_b_total", "B.", 2);
  metrics.Gauge("cadre_a", "A.", 0.5, {{"x", "say \"hi\"\n"}});
  EXPECT_EQ(metrics.Text(),
            "# HELP cadre_a A.\n# TYPE cadre_a gauge\n"
            "cadre_a{x=\"1\"} 1\ncadre_a{x=\"say \\\"hi\\\"\\n\"} 0.5\n"
            "# HELP cadre_b_total B.\n# TYPE cadre_b_total counter\ncadre_b_total 2\n");
}

TEST(MetricsTest, HistogramsAddUp) {
  Histogram histogram;
  histogram.Observe(absl::Microseconds(100));
  histogram.Observe(absl::Milliseconds(2));
  histogram.Observe(absl::Seconds(100));
  Metrics metrics;
  metrics.AddHistogram("cadre_h_seconds", "H.", histogram.Read());
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("cadre_h_seconds_count 3\n"));
  EXPECT_THAT(text, HasSubstr("cadre_h_seconds_sum 100.0021\n"));
  EXPECT_THAT(text, HasSubstr("cadre_h_seconds_bucket{le=\"0.0001\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("cadre_h_seconds_bucket{le=\"0.005\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("cadre_h_seconds_bucket{le=\"10\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("cadre_h_seconds_bucket{le=\"+Inf\"} 3\n"));
}

TEST(MetricsTest, CountersOfMembers) {
  Metrics metrics;
  metrics.AddCounters({{"staged_payload_bytes", 7}, {"refused_wrong_key", 2}});
  EXPECT_THAT(metrics.Text(), HasSubstr("cadre_staged_payload_bytes_total 7\n"));
  EXPECT_THAT(metrics.Text(), HasSubstr("cadre_refusals_total{reason=\"wrong_key\"} 2\n"));
}

TEST(MetricsTest, ProcessHasMemoryAndFiles) {
  Metrics metrics;
  metrics.AddProcess("1.2.3");
  EXPECT_THAT(metrics.Text(), HasSubstr("cadre_build_info{version=\"1.2.3\"} 1\n"));
  for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes",
                           "process_start_time_seconds", "process_open_fds"}) {
    EXPECT_THAT(metrics.Text(), HasSubstr(std::string("\n") + name + " "));
  }
}

}  // namespace
}  // namespace cadre
