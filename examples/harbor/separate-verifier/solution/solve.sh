#!/bin/bash
sort -V versions.txt > sorted.txt
