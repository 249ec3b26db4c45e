#include "cli/command_line.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/edit_distance.h"
#include "cli/command_options.h"
#include "cli/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<CommandLine> Parse(absl::string_view words) {
  const std::vector<std::string> split = absl::StrSplit(words, ' ', absl::SkipEmpty());
  return CommandLine::Parse(split);
}

std::string Refusal(absl::string_view words) {
  return std::string(Parse(words).status().message());
}

TEST(CommandLineTest, FlagsMayBeAnywhere) {
  const auto line = Parse("-o json local --groups 2 run.textproto --quiet");
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->verb()->name, "local");
  EXPECT_THAT(line->arguments(), ElementsAre("run.textproto"));
  EXPECT_EQ(line->Get<std::string>("o"), "json");
  EXPECT_EQ(line->Get<uint32_t>("groups"), 2u);
  EXPECT_TRUE(line->On("quiet"));
  EXPECT_THAT(line->given(), ElementsAre("groups"));
}

TEST(CommandLineTest, SpellingsOfFlags) {
  for (const char* flag :
       {"--space-ranks=3", "--space_ranks=3", "--space_ranks 3", "-space-ranks 3"}) {
    const auto line = Parse(absl::StrCat("local x ", flag));
    ASSERT_TRUE(line.ok()) << line.status();
    EXPECT_EQ(line->Get<uint32_t>("space-ranks"), 3u) << flag;
  }
  for (const char* flag : {"--norestart", "--no-restart", "--restart=false", "-norestart"}) {
    EXPECT_FALSE(Parse(absl::StrCat("local x ", flag))->On("restart")) << flag;
  }
  EXPECT_TRUE(Parse("local x --restart")->On("restart"));
  for (const char* flag : {"-O f", "-O=f", "--output f", "--output=f", "--output a -O f"}) {
    EXPECT_EQ(Parse(absl::StrCat("trace x ", flag))->Get<std::string>("output"), "f") << flag;
  }
}

TEST(CommandLineTest, ValuesMayHaveAnyForm) {
  EXPECT_EQ(Parse("local x --mesh=data=2,model=2")->Get<std::string>("mesh"), "data=2,model=2");
  EXPECT_EQ(Parse("trace x -O -")->Get<std::string>("output"), "-");
  EXPECT_EQ(Parse("local x --dir -1")->Get<std::string>("dir"), "-1");
  EXPECT_THAT(Parse("formula -- --quiet")->arguments(), ElementsAre("--quiet"));
}

TEST(CommandLineTest, Fallbacks) {
  const auto line = Parse("local x");
  EXPECT_EQ(line->Get<uint32_t>("threads"), 1u);
  EXPECT_FALSE(line->Has("threads"));
  EXPECT_EQ(line->Get<uint32_t>("groups"), std::nullopt);
  // The verb has no such flag.
  EXPECT_EQ(line->Get<std::string>("rate"), std::nullopt);
}

TEST(CommandLineTest, Durations) {
  const std::map<std::string, double> seconds = {
      {"90", 90}, {"1.5s", 1.5}, {"5m", 300}, {"1h30m", 5400}};
  for (const auto& [text, expected] : seconds) {
    EXPECT_EQ(Parse(absl::StrCat("runs --timeout ", text))->Get<absl::Duration>("timeout"),
              absl::Seconds(expected));
  }
  for (const char* bad : {"soon", "0", "-5s", "nan", "inf", "5parsecs"}) {
    EXPECT_THAT(Refusal(absl::StrCat("runs --timeout ", bad)), HasSubstr("takes a duration"))
        << bad;
  }
}

TEST(CommandLineTest, HelpAndVersionCheckNothingElse) {
  EXPECT_TRUE(Parse("local --help")->help());
  EXPECT_TRUE(Parse("-h")->help());
  EXPECT_TRUE(Parse("--version x")->version());
  EXPECT_EQ(Parse("")->verb(), nullptr);
}

TEST(SpecFlagsTest, ParsesPins) {
  const auto flags = SpecFlagsOf(*Parse("local x --mesh data=4,model=2 --layer fc6=model,c1=data"));
  ASSERT_TRUE(flags.ok()) << flags.status();
  ASSERT_EQ(flags->mesh.size(), 2u);
  EXPECT_EQ(flags->mesh[1].name(), "model");
  EXPECT_EQ(flags->mesh[1].size(), 2u);
  ASSERT_EQ(flags->layers.size(), 2u);
  EXPECT_EQ(flags->layers[1].layer(), "c1");
  EXPECT_EQ(flags->layers[1].parallelism(), v1::LayerPin::DATA);
}

TEST(SpecFlagsTest, ParsesPlacements) {
  const auto flags = SpecFlagsOf(*Parse("local x --layer mixed5=stage@1,fc=model+stage@2"));
  ASSERT_TRUE(flags.ok()) << flags.status();
  ASSERT_EQ(flags->layers.size(), 2u);
  EXPECT_EQ(flags->layers[0].parallelism(), v1::LayerPin::PARALLELISM_UNSPECIFIED);
  EXPECT_EQ(flags->layers[0].at(0).axis(), "stage");
  EXPECT_EQ(flags->layers[0].at(0).coordinate(), 1u);
  EXPECT_EQ(flags->layers[1].parallelism(), v1::LayerPin::MODEL);
  EXPECT_EQ(flags->layers[1].at(0).coordinate(), 2u);
}

TEST(SpecFlagsTest, RejectsOtherPins) {
  for (const char* flag : {"--mesh=",
                           "--mesh=data",
                           "--mesh=data=",
                           "--mesh==4",
                           "--mesh=data=4,",
                           "--mesh=data=0",
                           "--mesh=data=-1",
                           "--mesh=data=x",
                           "--mesh=data=4294967296",
                           "--mesh=data=2,data=2",
                           "--layer=",
                           "--layer=fc6",
                           "--layer=fc6=",
                           "--layer==model",
                           "--layer=fc6=model,fc6=data",
                           "--layer=fc6=sideways",
                           "--layer=fc6=stage@",
                           "--layer=fc6=@1",
                           "--layer=fc6=stage@-1",
                           "--layer=fc6=model+data"}) {
    const absl::Status status = SpecFlagsOf(*Parse(absl::StrCat("local x ", flag))).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << flag << ": " << status;
    const std::string name = std::string(flag).substr(0, std::string(flag).find('='));
    EXPECT_THAT(std::string(status.message()), HasSubstr(name)) << flag;
  }
}

// No verb takes a flag that is not in its row of the table.
TEST(CommandLineTest, RefusesFlagsOfOtherVerbs) {
  std::map<absl::string_view, const Flag*> all;
  for (const Verb& verb : Verbs()) {
    for (const Flag& flag : verb.flags) all[flag.name] = &flag;
  }
  for (const Verb& verb : Verbs()) {
    std::string words(verb.name);
    for (const Argument& argument : verb.arguments) {
      if (!argument.optional && !argument.repeated) words += " x";
    }
    for (const auto& [name, flag] : all) {
      const bool own = FindFlag(verb.flags, name) != nullptr;
      const std::string written =
          absl::StrCat(words, " ", FlagName(*flag), flag->kind == ValueKind::kSwitch ? "" : "=x");
      const std::string refusal = Refusal(written);
      EXPECT_EQ(own, !absl::StrContains(refusal, "is not a flag of")) << written << ": " << refusal;
    }
  }
  EXPECT_EQ(Refusal("stop x --mesh data=2"),
            "--mesh is not a flag of 'cadre stop', only of 'cadre local', 'cadre run', 'cadre "
            "plan', 'cadre probe'");
  EXPECT_THAT(Refusal("status --precision bf16"), HasSubstr("not a flag of 'cadre status'"));
  EXPECT_THAT(Refusal("local x --detach"), HasSubstr("only of 'cadre run'"));
}

// Words are split before the verb is known.
TEST(VerbsTest, AgreeWhichFlagsAreSwitches) {
  std::map<absl::string_view, bool> switches;
  for (const Verb& verb : Verbs()) {
    for (const Flag& flag : verb.flags) {
      const bool is_switch = flag.kind == ValueKind::kSwitch;
      EXPECT_EQ(switches.emplace(flag.name, is_switch).first->second, is_switch) << flag.name;
      EXPECT_FALSE(FindFlag(GlobalFlags(), flag.name)) << flag.name;
    }
  }
}

TEST(VerbsTest, HelpFitsInAHundredColumns) {
  std::string help = GeneralHelp();
  for (const Verb& verb : Verbs()) help += VerbHelp(verb);
  for (const absl::string_view line : absl::StrSplit(help, '\n')) {
    EXPECT_LE(Width(line), 104u) << line;
  }
}

TEST(NearestTest, FindsTyposOnly) {
  const std::vector<std::string> verbs = {"local", "run", "runs", "status", "watch", "members"};
  const std::map<std::string, std::string> typos = {{"statsu", "status"},
                                                    {"lcoal", "local"},
                                                    {"member", "members"},
                                                    {"stat", "status"},
                                                    {"wacht", "watch"}};
  for (const auto& [typo, meant] : typos) EXPECT_EQ(Nearest(typo, verbs), meant);
  EXPECT_EQ(Nearest("frobnicate", verbs), std::nullopt);
  EXPECT_EQ(Nearest("", verbs), std::nullopt);
}

}  // namespace
}  // namespace cadre
