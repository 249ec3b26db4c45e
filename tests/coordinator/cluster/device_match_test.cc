#include "coordinator/cluster/device_match.h"

#include <gtest/gtest.h>

namespace cadre {
namespace {

TEST(DeviceMatchTest, WorkersReportPrecisionsAndProgramsChooseThem) {
  v1::RunSpec spec;
  v1::MemberRecord worker;
  EXPECT_TRUE(Suits(worker, spec));
  spec.set_precision(v1::RunSpec::FP32);
  EXPECT_TRUE(Suits(worker, spec));
  spec.set_precision(v1::RunSpec::BF16);
  EXPECT_FALSE(Suits(worker, spec));
  worker.mutable_reservation();
  EXPECT_TRUE(Suits(worker, spec));
  worker.clear_reservation();
  worker.add_precisions(v1::RunSpec::BF16);
  EXPECT_TRUE(Suits(worker, spec));
  spec.mutable_cluster()->set_device(v1::Cluster::CUDA);
  worker.set_device_kind(v1::Cluster::CPU);
  EXPECT_FALSE(Suits(worker, spec));
}

TEST(DeviceMatchTest, Tf32ImpliesCuda) {
  v1::RunSpec spec;
  EXPECT_EQ(RequestedDevice(spec), v1::Cluster::DEVICE_UNSPECIFIED);
  spec.mutable_cluster()->set_device(v1::Cluster::CPU);
  EXPECT_EQ(RequestedDevice(spec), v1::Cluster::CPU);
  spec.mutable_cluster()->clear_device();
  spec.set_precision(v1::RunSpec::FP32);
  EXPECT_EQ(RequestedDevice(spec), v1::Cluster::DEVICE_UNSPECIFIED);
  spec.set_precision(v1::RunSpec::BF16);
  EXPECT_EQ(RequestedDevice(spec), v1::Cluster::DEVICE_UNSPECIFIED);
  spec.set_precision(v1::RunSpec::TF32);
  EXPECT_EQ(RequestedDevice(spec), v1::Cluster::CUDA);
}

}  // namespace
}  // namespace cadre
