#!/bin/bash
wc -l <lines >count
