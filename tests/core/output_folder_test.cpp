#include "core/output_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>

#include "support/temporary_folder.h"
#include "support/throws.h"

namespace halfbyte {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using Names = std::set<std::string>;

TEST(OutputFolder, AppearsWholeWithCommitAndNotBefore) {
    const TemporaryFolder folder;
    {
        OutputFolder output(folder / "out", false);
        output.write_text("config.json", "{}");
        EXPECT_FALSE(fs::exists(folder / "out"));
        EXPECT_EQ(output.path().parent_path(), folder.path());  // a rename never crosses file systems
        output.commit();
    }
    EXPECT_EQ(folder.names(), Names{"out"});
    EXPECT_EQ(test::read_file(folder / "out" / "config.json"), "{}");
    EXPECT_EQ(fs::status(folder / "out").permissions(), fs::perms(0755));
}

TEST(OutputFolder, WithoutCommitNothingIsLeft) {
    const TemporaryFolder folder;
    {
        const OutputFolder output(folder / "out", false);
        output.write_text("a", "text");
        fs::create_directory(output.path() / "inside");
    }
    EXPECT_EQ(folder.names(), Names{});
}

TEST(OutputFolder, RefusesWhatExists) {
    const TemporaryFolder folder;
    fs::create_directory(folder / "out");
    test::write_file(folder / "file", "");
    for (const char* name : {"out", "file"})
        EXPECT_TRUE(test::throws(ErrorKind::usage, "exists already; --force",
                                 [&] { OutputFolder output(folder / name, false); }));
    EXPECT_EQ(folder.names(), (Names{"out", "file"}));
}

TEST(OutputFolder, ForceReplacesTheWholeFolder) {
    const TemporaryFolder folder;
    fs::create_directory(folder / "out");
    test::write_file(folder / "out" / "old", "old");
    {
        OutputFolder output(folder / "out/", true);  // a slash at the end changes nothing
        output.write_text("new", "new");
        EXPECT_EQ(test::read_file(folder / "out" / "old"), "old");
        output.commit();
    }
    EXPECT_EQ(folder.names(), Names{"out"});
    EXPECT_EQ(test::read_file(folder / "out" / "new"), "new");
    EXPECT_FALSE(fs::exists(folder / "out" / "old"));
}

TEST(OutputFolder, ForceWithoutCommitKeepsTheOldFolder) {
    const TemporaryFolder folder;
    fs::create_directory(folder / "out");
    test::write_file(folder / "out" / "old", "old");
    {
        OutputFolder output(folder / "out", true);
    }
    EXPECT_EQ(folder.names(), Names{"out"});
    EXPECT_EQ(test::read_file(folder / "out" / "old"), "old");
}

TEST(OutputFolder, ForceReplacesNoLink) {
    const TemporaryFolder folder;
    fs::create_directory(folder / "target");
    test::write_file(folder / "target" / "kept", "kept");
    fs::create_directory_symlink(folder / "target", folder / "out");
    EXPECT_TRUE(test::throws(ErrorKind::usage, "is a link and is not replaced",
                             [&] { OutputFolder output(folder / "out", true); }));
    EXPECT_EQ(folder.names(), (Names{"out", "target"}));
    EXPECT_TRUE(fs::is_symlink(folder / "out"));
    EXPECT_EQ(test::read_file(folder / "target" / "kept"), "kept");
}

TEST(OutputFolder, ForceDoesNotReplaceAFile) {
    const TemporaryFolder folder;
    test::write_file(folder / "out", "text");
    EXPECT_TRUE(
        test::throws(ErrorKind::usage, "not a folder", [&] { OutputFolder output(folder / "out", true); }));
    EXPECT_EQ(test::read_file(folder / "out"), "text");
}

TEST(OutputFolder, WhatAppearsMeanwhileIsNotOverwritten) {
    const TemporaryFolder folder;
    {
        OutputFolder output(folder / "out", false);
        fs::create_directory(folder / "out");
        EXPECT_TRUE(test::throws(ErrorKind::usage, "appeared meanwhile", [&] { output.commit(); }));
    }
    EXPECT_EQ(folder.names(), Names{"out"});
    EXPECT_TRUE(fs::is_empty(folder / "out"));
}

TEST(OutputFolder, NamesAMissingParent) {
    const TemporaryFolder folder;
    EXPECT_TRUE(test::throws(ErrorKind::failure, (folder / "no").string() + " does not exist",
                             [&] { OutputFolder output(folder / "no" / "out", false); }));
    EXPECT_EQ(folder.names(), Names{});
}

TEST(OutputFolder, RefusesNamesThatCannotBeCreated) {
    for (const char* name : {"", "/", "//", ".", "..", "../"})
        EXPECT_TRUE(test::throws(ErrorKind::usage, "give the name", [&] { OutputFolder output(name, true); }))
            << name;
}

TEST(OutputFolder, WritesAFileOnce) {
    const TemporaryFolder folder;
    const OutputFolder output(folder / "out", false);
    output.write_text("a", "1");
    EXPECT_TRUE(
        test::throws(ErrorKind::failure, "a: cannot be created", [&] { output.write_text("a", "2"); }));
    EXPECT_EQ(test::read_file(output.path() / "a"), "1");
}

TEST(WriteAll, NamesTheFileWhenTheSystemRefuses) {
    const TemporaryFolder folder;
    test::write_file(folder / "a", "");
    const int descriptor = ::open((folder / "a").c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_TRUE(test::throws(ErrorKind::failure, "a: cannot be written",
                             [&] { write_all(descriptor, "text", 4, folder / "a"); }));
    ::close(descriptor);
    EXPECT_TRUE(test::throws(ErrorKind::failure, "missing: cannot be opened",
                             [&] { sync_to_disk(folder / "missing"); }));
}

}  // namespace
}  // namespace halfbyte
