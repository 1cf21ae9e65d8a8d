#include "core/cgroup.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_folder.h"

namespace halfbyte {
namespace {

// A folder in the place of "/".
class Tree {
  public:
    Tree& put(const std::string& path, const std::string& text) {
        const std::string file = root() + path;
        std::filesystem::create_directories(std::filesystem::path(file).parent_path());
        std::ofstream(file) << text;
        return *this;
    }
    Tree& groups(const std::string& text) { return put("/proc/self/cgroup", text); }
    Tree& mounts(const std::string& text) { return put("/proc/self/mountinfo", text); }
    Tree& quota_v1(const std::string& folder, const std::string& quota, const std::string& period) {
        put(folder + "/cpu.cfs_quota_us", quota + "\n");
        return put(folder + "/cpu.cfs_period_us", period + "\n");
    }
    int processors() const { return cgroup_processors(root()); }

  private:
    std::string root() const { return folder_.path().string(); }
    test::TemporaryFolder folder_;
};

const std::string v2_mount =
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "31 22 0:28 / /sys/fs/cgroup rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate\n";
const std::string v1_mounts =
    "31 22 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpuset rw shared:8 - cgroup cgroup rw,cpuset\n"
    "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n";

TEST(Cgroup, NoFilesAreNoLimit) {
    Tree tree;
    EXPECT_EQ(tree.processors(), 0);
    tree.groups("0::/a\n");
    EXPECT_EQ(tree.processors(), 0);
    tree.mounts(v2_mount);
    EXPECT_EQ(tree.processors(), 0);
}

TEST(Cgroup, Version2HasTheLeastOfAllAbove) {
    Tree tree;
    tree.groups("0::/user.slice/a b/job\n").mounts(v2_mount);
    tree.put("/sys/fs/cgroup/user.slice/a b/job/cpu.max", "700000 100000\n");
    EXPECT_EQ(tree.processors(), 7);
    tree.put("/sys/fs/cgroup/user.slice/cpu.max", "300000 100000\n");
    EXPECT_EQ(tree.processors(), 3);
    tree.put("/sys/fs/cgroup/user.slice/a b/cpu.max", "max 100000\n");
    EXPECT_EQ(tree.processors(), 3);
    tree.put("/sys/fs/cgroup/cpu.max", "100000 50000\n");
    EXPECT_EQ(tree.processors(), 2);
    tree.put("/sys/fs/cgroup/user.slice/a b/job/cpu.max", "10000 100000\n");  // a tenth of a processor
    EXPECT_EQ(tree.processors(), 1);
}

TEST(Cgroup, OtherGroupsDoNotCount) {
    Tree tree;
    tree.groups("0::/a/b\n").mounts(v2_mount);
    tree.put("/sys/fs/cgroup/a/c/cpu.max", "100000 100000\n");
    tree.put("/sys/fs/cgroup/a/b/below/cpu.max", "100000 100000\n");
    tree.put("/sys/fs/cgroup/b/cpu.max", "100000 100000\n");
    tree.put("/cpu.max", "100000 100000\n");
    EXPECT_EQ(tree.processors(), 0);
}

TEST(Cgroup, Version1HasTwoFilesAndAMountOfTheController) {
    Tree tree;
    tree.groups("5:cpuset:/x\n4:cpu,cpuacct:/docker/job\n1:name=systemd:/y\n").mounts(v1_mounts);
    const std::string cpu = "/sys/fs/cgroup/cpu,cpuacct";
    tree.quota_v1("/sys/fs/cgroup/cpuset/docker/job", "100000", "100000");  // of another controller
    EXPECT_EQ(tree.processors(), 0);
    tree.quota_v1(cpu, "-1", "100000").quota_v1(cpu + "/docker/job", "600000", "100000");
    EXPECT_EQ(tree.processors(), 6);
    tree.quota_v1(cpu + "/docker", "200000", "50000");
    EXPECT_EQ(tree.processors(), 4);
    tree.quota_v1(cpu + "/docker", "-1", "100000");
    EXPECT_EQ(tree.processors(), 6);
}

TEST(Cgroup, AControllerIsFoundAmongOthersByItsWholeName) {
    Tree tree;
    tree.groups("5:cpuset,cpuacct:/wrong\n4:cpuacct,cpu:/right\n");
    tree.mounts(
        "33 31 0:30 / /cg/wrong rw - cgroup cgroup rw,cpuacct,cpuset\n"
        "34 31 0:31 / /cg/cpu\\040time rw - cgroup cgroup rw,cpuacct,cpu\n");
    tree.quota_v1("/cg/wrong/wrong", "100000", "100000").quota_v1("/cg/wrong/right", "100000", "100000");
    EXPECT_EQ(tree.processors(), 0);
    tree.quota_v1("/cg/cpu time/right", "500000", "100000");
    EXPECT_EQ(tree.processors(), 5);
}

TEST(Cgroup, AContainersMountIsAPartOfTheHierarchy) {
    // No cgroup namespace: the path is the host's, and so is the mounted part.
    Tree host_path;
    host_path.groups("0::/kube/pod/job\n");
    host_path.mounts("31 22 0:28 /kube/pod /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    host_path.put("/sys/fs/cgroup/job/cpu.max", "500000 100000\n");
    EXPECT_EQ(host_path.processors(), 5);
    host_path.put("/sys/fs/cgroup/cpu.max", "400000 100000\n");
    EXPECT_EQ(host_path.processors(), 4);
    host_path.put("/sys/fs/cgroup/kube/pod/job/cpu.max", "100000 100000\n");  // somebody else's
    EXPECT_EQ(host_path.processors(), 4);

    Tree v1;
    v1.groups("4:cpu:/docker/0123\n");
    v1.mounts("33 31 0:30 /docker/0123 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n");
    v1.quota_v1("/sys/fs/cgroup/cpu", "300000", "100000");
    EXPECT_EQ(v1.processors(), 3);

    // A namespace: the process's group is the root of what it sees.
    Tree own;
    own.groups("0::/\n").mounts(v2_mount).put("/sys/fs/cgroup/cpu.max", "250000 100000\n");
    EXPECT_EQ(own.processors(), 2);
}

TEST(Cgroup, AMountThatThePathIsNotBelowIsTheGroup) {
    for (const char* path : {"/", "/kube/podling/job", "/kube", "/../../job", "/kube/pod/../other"}) {
        Tree tree;
        tree.groups(std::string("0::") + path + "\n");
        tree.mounts("31 22 0:28 /kube/pod /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
        tree.put("/sys/fs/cgroup/cpu.max", "300000 100000\n");
        tree.put("/sys/fs/cgroup/job/cpu.max", "100000 100000\n");
        tree.put("/sys/fs/cgroup/ling/job/cpu.max", "100000 100000\n");
        tree.put("/sys/fs/other/cpu.max", "100000 100000\n").put("/sys/fs/cgroup/pod/keep", "");
        EXPECT_EQ(tree.processors(), 3) << path;
    }
    Tree outside;  // of the namespace, with its root mounted
    outside.groups("0::/../job\n").mounts(v2_mount).put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    outside.put("/sys/fs/job/cpu.max", "100000 100000\n");
    EXPECT_EQ(outside.processors(), 2);
    Tree nameless;  // a hierarchy of which /proc/self/cgroup tells nothing
    nameless.groups("0::/\n").mounts(v1_mounts).quota_v1("/sys/fs/cgroup/cpu,cpuacct", "200000", "100000");
    EXPECT_EQ(nameless.processors(), 2);
}

TEST(Cgroup, AMountOfTheGroupIsPreferredToOneOfSomethingElse) {
    Tree tree;
    tree.groups("0::/job\n");
    tree.mounts(
        "30 22 0:28 /.. /host/cgroup ro - cgroup2 cgroup rw\n"
        "31 22 0:28 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    tree.put("/host/cgroup/cpu.max", "100000 100000\n").put("/host/cgroup/job/cpu.max", "100000 100000\n");
    tree.put("/sys/fs/cgroup/job/cpu.max", "300000 100000\n");
    EXPECT_EQ(tree.processors(), 3);
}

TEST(Cgroup, AHybridMachineHasBothVersions) {
    Tree tree;
    tree.groups("4:cpu,cpuacct:/job\n0::/unit\n");
    tree.mounts(v1_mounts + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    tree.quota_v1("/sys/fs/cgroup/cpu,cpuacct/job", "300000", "100000");
    EXPECT_EQ(tree.processors(), 3);
    tree.put("/sys/fs/cgroup/unified/unit/cpu.max", "400000 100000\n");
    EXPECT_EQ(tree.processors(), 3);
    tree.put("/sys/fs/cgroup/unified/unit/cpu.max", "200000 100000\n");
    EXPECT_EQ(tree.processors(), 2);
}

TEST(Cgroup, OddContentsAreNoLimit) {
    for (const char* text :
         {"", "\n", "max 100000\n", "max\n", "-1 100000\n", "0 100000\n", "100000 0\n", "100000 -1\n",
          "nan 1\n", "inf 1\n", "1e30 1\n", "0x10 1\n", "+4 1\n", "4.5 1\n", "99999999999999999999 1\n",
          "100000\n", "100000 max\n", "100000 100000 1\n", "100000 1e5\n"}) {
        Tree tree;
        tree.groups("0::/job\n").mounts(v2_mount).put("/sys/fs/cgroup/job/cpu.max", text);
        EXPECT_EQ(tree.processors(), 0) << '"' << text << '"';
    }
    for (const auto& [quota, period] : std::vector<std::pair<std::string, std::string>>{
             {"", "100000"}, {"100000", ""}, {"-1", "100000"}, {"100000", "0"}, {"nan", "1"}, {"1 2", "1"}}) {
        Tree tree;
        tree.groups("4:cpu:/job\n").mounts(v1_mounts);
        tree.quota_v1("/sys/fs/cgroup/cpu,cpuacct/job", quota, period);
        EXPECT_EQ(tree.processors(), 0) << quota << " of " << period;
    }
    Tree large;
    large.groups("0::/\n").mounts(v2_mount).put("/sys/fs/cgroup/cpu.max", "9223372036854775807 1\n");
    EXPECT_EQ(large.processors(), std::numeric_limits<int>::max());
}

TEST(Cgroup, LinesThatAreNoneAreLeftOut) {
    Tree tree;
    tree.groups("\n0\n0:\nnonsense\n0::/job\n");
    tree.mounts("\n1 2\n31 22 0:28 / /x rw\n31 22 0:28 / /x rw - cgroup2\n31 22 0:28 / /x rw - cgroup2 c\n" +
                v2_mount);
    tree.put("/sys/fs/cgroup/job/cpu.max", "200000 100000\n").put("/x/job/cpu.max", "100000 100000\n");
    EXPECT_EQ(tree.processors(), 2);
}

}  // namespace
}  // namespace halfbyte
