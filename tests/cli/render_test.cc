#include "cli/render.h"

#include <cmath>
#include <limits>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/cadre/v1/control.pb.h"
#include "proto/cadre/v1/rounds.pb.h"
#include "proto/cadre/v1/run.pb.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

std::string Text(const google::protobuf::Message& message) { return OneLine(ToJson(message)); }

TEST(ToJsonTest, PrintsDefaultsUnderProtoNames) {
  EXPECT_EQ(Text(v1::EvaluationResult()),
            R"({"version":0,"step":0,"samples":0,"accuracy":0.0,"loss":0.0,"seconds":0.0})");
}

TEST(ToJsonTest, UnsetOptionalFieldIsNull) {
  v1::CheckpointStatus checkpoint;
  EXPECT_TRUE(ToJson(checkpoint)["saved_step"].is_null());
  EXPECT_EQ(ToJson(checkpoint)["failed_step"], 0);
  checkpoint.set_saved_step(0);
  EXPECT_EQ(ToJson(checkpoint)["saved_step"], 0);
}

TEST(ToJsonTest, PrefersJsonName) {
  v1::GroupStatus group;
  group.set_prediction_error_cause("link");
  EXPECT_EQ(ToJson(group)["prediction_blame"], "link");
}

TEST(ToJsonTest, WideIntegers) {
  v1::ShardState shard;
  shard.set_digest(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(ToJson(shard)["digest"], "ffffffffffffffff");
  v1::WatchUpdate update;
  update.set_time_ms(std::numeric_limits<int64_t>::min());
  EXPECT_THAT(Text(update), HasSubstr(R"("time_ms":-9223372036854775808)"));
}

TEST(ToJsonTest, FloatsKeepTheirDigits) {
  v1::RunStatus run;
  run.set_rate(0.1f);
  run.set_epoch(1.0 / 3);
  EXPECT_THAT(Text(run), HasSubstr(R"("rate":0.1,)"));
  EXPECT_EQ(Json::parse(Text(run))["epoch"], 1.0 / 3);
}

TEST(ToJsonTest, NonFiniteNumbersAreNull) {
  v1::RunStatus run;
  run.set_loss(NAN);
  run.set_epoch(INFINITY);
  run.set_rate(-std::numeric_limits<float>::infinity());
  const Json parsed = Json::parse(Text(run));
  for (const char* key : {"loss", "epoch", "rate"}) EXPECT_TRUE(parsed[key].is_null()) << key;
}

TEST(ToJsonTest, MapsAreSorted) {
  v1::GroupStatus group;
  (*group.mutable_mesh())["model"] = 2;
  (*group.mutable_mesh())["data"] = 1;
  EXPECT_EQ(OneLine(ToJson(group)["mesh"]), R"({"data":1,"model":2})");
  v1::OpenRun open;
  (*open.mutable_generations())[7] = 9;
  EXPECT_EQ(OneLine(ToJson(open)["generations"]), R"({"7":9})");
}

TEST(ToJsonTest, EnumsAreShortNames) {
  v1::RunStatus run;
  run.set_state(v1::RUN_STATE_RUNNING);
  EXPECT_EQ(ToJson(run)["state"], "running");
  run.set_state(v1::RUN_STATE_UNSPECIFIED);
  EXPECT_EQ(ToJson(run)["state"], "unspecified");
  v1::Refused refused;
  refused.set_refusal(v1::REFUSAL_STALE_GENERATION);
  EXPECT_EQ(ToJson(refused)["refusal"], "stale_generation");
  // The value comes from a newer build.
  refused.set_refusal(static_cast<v1::Refusal>(4711));
  EXPECT_EQ(ToJson(refused)["refusal"], 4711);
}

TEST(ToJsonTest, UnsetMessagesAreNullUnsetChoicesAbsent) {
  v1::RunSpec spec;
  EXPECT_TRUE(ToJson(spec)["model"].is_null());
  v1::Layer* layer = spec.mutable_model()->add_layer();
  layer->set_name("r");
  layer->mutable_relu();
  EXPECT_EQ(Text(*layer), R"({"name":"r","input":[],"set":[],"relu":{}})");
}

TEST(ToJsonTest, EncodesBytesAndReplacesInvalidUtf8) {
  v1::Chunk chunk;
  chunk.set_data(std::string("\0\xff", 2));
  EXPECT_EQ(ToJson(chunk)["data"], "AP8=");
  EXPECT_EQ(OneLine(Json("a\xff")), "\"a\xef\xbf\xbd\"");
}

TEST(ToJsonTest, NestsRepeatedMessages) {
  v1::ListReply list;
  list.add_runs()->set_run("a");
  list.add_runs()->set_run("b");
  const Json json = ToJson(list);
  ASSERT_EQ(json["runs"].size(), 2u);
  EXPECT_EQ(json["runs"][1]["run"], "b");
}

TEST(PrintTest, WritesTheRequestedFormat) {
  std::ostringstream out;
  const Console console{.out = out, .err = out};
  const Json json = {{"z", 1.5}, {"a", Json::array()}};
  Print(json, "text\n", {}, console);
  EXPECT_EQ(out.str(), "text\n");
  out.str("");
  Print(json, "text\n", {.format = OutputFormat::kJson}, console);
  EXPECT_EQ(out.str(), "{\n  \"z\": 1.5,\n  \"a\": []\n}\n");
}

}  // namespace
}  // namespace cadre
