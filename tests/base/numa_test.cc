// Descriptions of hosts in a temporary folder replace that of the kernel.
#include "base/numa.h"

#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hardware.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/temporary_folder.h"

namespace cadre {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::vector<int> CpuRange(int begin, int end) {
  std::vector<int> cpus;
  for (int cpu = begin; cpu < end; ++cpu) cpus.push_back(cpu);
  return cpus;
}

class NumaTest : public testing::Test {
 protected:
  // Writes the description of a host. The lists are as the kernel writes them, without the newline.
  void WriteHost(const std::string& online,
                 const std::vector<std::pair<int, std::string>>& cpus_of_nodes) {
    folder_.Write("online", online + "\n");
    for (const auto& [number, cpus] : cpus_of_nodes) {
      const std::string name = absl::StrCat("node", number);
      std::filesystem::create_directories(folder_ / name);
      folder_.Write(name + "/cpulist", cpus + "\n");
    }
  }
  absl::StatusOr<std::vector<NumaNode>> Nodes(const std::vector<int>& cpus) {
    return NumaNodesOf(cpus, folder_.path());
  }
  // "0:0,1 2:4" for node 0 with CPUs 0 and 1, and node 2 with CPU 4.
  std::string NodesText(const std::vector<int>& cpus) {
    const auto nodes = Nodes(cpus);
    if (!nodes.ok()) return std::string(nodes.status().message());
    std::string text;
    for (const NumaNode& node : *nodes) {
      absl::StrAppend(&text, text.empty() ? "" : " ", node.number, ":");
      for (size_t i = 0; i < node.cpus.size(); ++i) {
        absl::StrAppend(&text, i == 0 ? "" : ",", node.cpus[i]);
      }
    }
    return text;
  }

  const TemporaryFolder folder_;
};

TEST_F(NumaTest, TwoNodes) {
  WriteHost("0-1", {{0, "0-1,4-5"}, {1, "2-3,6-7"}});
  EXPECT_EQ(NodesText(CpuRange(0, 8)), "0:0,1,4,5 1:2,3,6,7");
}

TEST_F(NumaTest, OnlyUsableCpus) {
  WriteHost("0-1", {{0, "0-3"}, {1, "4-7"}});
  EXPECT_EQ(NodesText({1, 3, 6}), "0:1,3 1:6");
  EXPECT_EQ(NodesText({5, 7}), "1:5,7");
  EXPECT_EQ(NodesText({}), "");
}

// The kernel lists neither CPUs nor nodes that are offline.
TEST_F(NumaTest, OfflineCpusAndNodes) {
  WriteHost("0,2", {{0, "0,2-3"}, {1, "4-7"}, {2, "8,10-11"}});
  EXPECT_EQ(NodesText({0, 2, 3, 8, 10, 11}), "0:0,2,3 2:8,10,11");
}

TEST_F(NumaTest, NodesWithoutCpus) {
  WriteHost("0-3", {{0, ""}, {1, "0-1"}, {2, ""}, {3, "2"}});
  EXPECT_EQ(NodesText(CpuRange(0, 3)), "1:0,1 3:2");
}

TEST_F(NumaTest, ManyCpus) {
  WriteHost("0-1", {{0, "0-1023,2048-3071"}, {1, "1024-2047,3072-4095"}});
  const auto nodes = Nodes(CpuRange(0, 4096));
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  ASSERT_THAT(*nodes, SizeIs(2));
  EXPECT_THAT((*nodes)[0].cpus, SizeIs(2048));
  EXPECT_EQ((*nodes)[1].cpus.back(), 4095);
}

TEST_F(NumaTest, WithoutDescriptionOneNode) {
  EXPECT_EQ(NodesText({2, 5}), "0:2,5");
  EXPECT_EQ(NumaNodesOf({1}, "/no/such/folder")->at(0).cpus, std::vector<int>{1});
}

TEST_F(NumaTest, MalformedDescriptions) {
  for (const char* list :
       {"x", "0-", "-1", "3-2", "0-1-2", "0,,x", "0-9999999999", "8192", "0 1"}) {
    WriteHost("0-1", {{0, "0-1"}, {1, list}});
    const auto nodes = Nodes(CpuRange(0, 8));
    EXPECT_TRUE(absl::IsInvalidArgument(nodes.status())) << list;
    EXPECT_THAT(nodes.status().message(), HasSubstr(folder_ / "node1/cpulist")) << list;
  }
  WriteHost("all", {});
  EXPECT_TRUE(absl::IsInvalidArgument(Nodes({0}).status()));
}

TEST_F(NumaTest, MissingNode) {
  WriteHost("0-1", {{0, "0"}});
  const auto nodes = Nodes({0, 1});
  EXPECT_TRUE(absl::IsNotFound(nodes.status()));
  EXPECT_THAT(nodes.status().message(), HasSubstr(folder_ / "node1/cpulist"));
}

// This host may have any number of nodes; together they have its CPUs.
TEST_F(NumaTest, ReadsThisHost) {
  std::vector<int> cpus;
  for (const NumaNode& node : UsableNumaNodes()) {
    cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
  }
  EXPECT_THAT(cpus, testing::UnorderedElementsAreArray(UsableCpus()));
}

TEST_F(NumaTest, ProcessesShareNodesInProportion) {
  const auto node_of = [](const std::vector<NumaNode>& nodes, int processes, int threads = 1) {
    std::vector<int> numbers;
    for (int i = 0; i < processes; ++i) {
      numbers.push_back(NumaNodeOfProcess(nodes, i, processes, threads).value_or(-1));
    }
    return numbers;
  };
  const std::vector<NumaNode> equal = {{0, CpuRange(0, 4)}, {1, CpuRange(4, 8)}};
  EXPECT_THAT(node_of(equal, 1), ElementsAre(0));
  EXPECT_THAT(node_of(equal, 2), ElementsAre(0, 1));
  EXPECT_THAT(node_of(equal, 3), ElementsAre(0, 0, 1));
  EXPECT_THAT(node_of(equal, 4), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(node_of(equal, 2, 4), ElementsAre(0, 1));
  EXPECT_THAT(node_of(equal, 2, 5), ElementsAre(-1, -1)) << "more threads than CPUs";
  const std::vector<NumaNode> unequal = {{2, CpuRange(0, 1)}, {5, CpuRange(4, 7)}};
  EXPECT_THAT(node_of(unequal, 4), ElementsAre(2, 5, 5, 5));
  EXPECT_THAT(node_of(unequal, 4, 2), ElementsAre(-1, 5, 5, 5));
  EXPECT_THAT(node_of({{0, CpuRange(0, 8)}}, 2), ElementsAre(-1, -1)) << "one node";
  EXPECT_THAT(node_of({}, 2), ElementsAre(-1, -1));
}

// Another thread is bound, so that the CPUs of this one do not change.
TEST_F(NumaTest, BindsThreadsToUsableCpusOfNode) {
  const int own = UsableCpus().front();
  // CPUs that no process of this host may use come first and last.
  WriteHost("0-1", {{0, "8190"}, {1, absl::StrCat(own, ",8191")}});
  std::thread([&] {
    const absl::Status other = BindToNumaNode(0, folder_.path());
    EXPECT_TRUE(absl::IsInvalidArgument(other));
    EXPECT_THAT(other.message(), HasSubstr("NUMA node 0 has no CPU that this process may use"));
    EXPECT_THAT(other.message(), HasSubstr("such CPUs: 1"));
    EXPECT_TRUE(absl::IsInvalidArgument(BindToNumaNode(7, folder_.path())));
    ASSERT_EQ(BindToNumaNode(1, folder_.path()), absl::OkStatus());
    EXPECT_THAT(UsableCpus(), ElementsAre(own));
    std::thread([&] { EXPECT_THAT(UsableCpus(), ElementsAre(own)); }).join();
    // As a restarted program does.
    EXPECT_EQ(BindToNumaNode(1, folder_.path()), absl::OkStatus());
  }).join();
}

}  // namespace
}  // namespace cadre
